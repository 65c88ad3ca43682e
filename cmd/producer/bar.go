package main

import (
	"io"
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// bar is a progress bar, or none.
type bar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
	known    bool
}

// newBar shows a bar if stderr is a terminal, or as it is told.
func newBar(when string, total int64, stderr io.Writer) *bar {
	f, ok := stderr.(*os.File)
	if when == "never" || when == "auto" && (!ok || !term.IsTerminal(int(f.Fd()))) {
		return &bar{}
	}
	b := &bar{progress: mpb.New(mpb.WithOutput(stderr), mpb.WithWidth(64)), known: total > 0}
	if b.known {
		b.bar = b.progress.AddBar(total, mpb.PrependDecorators(decor.Percentage(decor.WCSyncSpace)),
			mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_MMSS), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_MMSS)))
	} else {
		b.bar = b.progress.AddSpinner(0, mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.CurrentKibiByte("% .1f ")), mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_MMSS)))
	}
	return b
}

func (b *bar) add(n int) {
	if b.bar != nil {
		b.bar.IncrBy(n)
	}
}

// end leaves a bar as it is; one that does not know how far it is goes.
func (b *bar) end() {
	if b.bar == nil {
		return
	}
	b.bar.SetTotal(-1, true)
	b.progress.Wait()
}
