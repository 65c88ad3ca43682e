package producer

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tacitmq/tacit/message"
)

// A batch that a broker need not read is refused before it is sent, with its size and the limit: a broker that does not
// read it ends the stream, and with it the batches of everybody in the process.
func TestMessageThatNoBrokerNeedReadIsNotSent(t *testing.T) {
	noise := make([]byte, 20<<20)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(noise)
	for name, c := range map[string]struct {
		opts []Option
		body []byte
		sent bool
	}{
		"as it is":           {nil, noise, false},
		"compressed in vain": {[]Option{WithCompression(Zstd)}, noise, false},
		"compressed":         {[]Option{WithCompression(Zstd)}, make([]byte, 20<<20), true},
		"just small enough":  {nil, noise[:16<<20-128<<10], true},
		"brokers take more":  {[]Option{WithLargestBatch(24 << 20)}, noise, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.setRoute(1, "a")
				p := newTest(t, f, append(c.opts, WithMaxBodyBytes(24<<20))...)
				res, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("small")}, &message.Message{Topic: "T", Body: c.body})
				if (err == nil) != c.sent {
					t.Errorf("error is %v", err)
				}
				if !c.sent && (!errors.Is(err, ErrMessageTooLarge) || !strings.Contains(err.Error(), "allowed 16711680") || !strings.Contains(err.Error(), "batch of 209")) {
					t.Errorf("error is %v", err)
				}
				if res[0].Err != nil {
					t.Errorf("the message beside it: %v", res[0].Err)
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if want := map[bool]int{false: 1, true: 2}[c.sent]; len(f.sent) != want {
					t.Errorf("%d batches were sent, want %d", len(f.sent), want)
				}
			})
		})
	}
}
