package store_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/vfs"
)

// An offset that was shown to anybody never gets another message, also when the
// message it belonged to is lost by a power cut.
func TestOffsetsAreNeverGivenTwiceWithoutSyncs(t *testing.T) {
	for _, durability := range []store.Durability{store.Interval, store.None} {
		for seed := range seeds(t, 40) {
			t.Run(fmt.Sprint(durability, "/", seed), func(t *testing.T) { runLoose(t, durability, uint64(seed)) })
		}
	}
}

func runLoose(t *testing.T, durability store.Durability, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 18))
	d, ev := memDisks(), &events{}
	seen := map[store.Queue]map[int64]string{}
	queues := make([]store.Queue, 3)
	for i := range queues {
		queues[i] = store.Queue{Topic: "T", ID: int32(i)}
		seen[queues[i]] = map[int64]string{}
	}
	n := 0
	for life := range 8 {
		o := d.options(ev)
		o.Durability, o.Boot = durability, strconv.Itoa(life)
		if rng.IntN(4) == 0 {
			o.Durability = store.Fsync
		}
		o.SegmentBytes, o.RetainBytes = 16<<10, 100<<10
		s := open(t, "d", o)
		if life == 0 {
			putTopic(t, s, "T", int32(len(queues)))
		}
		for range rng.IntN(60) {
			q := queues[rng.IntN(len(queues))]
			b := body(n, 10+rng.IntN(1000))
			n++
			a := appendBodies(t, s, q, b)
			if was, ok := seen[q][a.Offset]; ok {
				t.Fatalf("life %d: offset %d of %v is given to %s, it was that of %s", life, a.Offset, q, strings.TrimLeft(b, "0"), strings.TrimLeft(was, "0"))
			}
			seen[q][a.Offset] = b
			if rng.IntN(20) == 0 {
				store.Retain(s)
			}
		}
		store.Retain(s) // so that nothing is dropped while it is read
		for _, q := range queues {
			lo, end, err := s.Bounds(q)
			if err != nil {
				t.Fatal(err)
			}
			for at, b := range readAll(t, s, q, lo) {
				if seen[q][at] != b {
					t.Fatalf("life %d: %d of %v is %.20q, was %.20q", life, at, q, b, seen[q][at])
				}
			}
			// A reader may stand in a gap.
			if from := lo + rng.Int64N(max(1, end-lo)); len(readAll(t, s, q, from)) > int(end-from) {
				t.Fatal("too many")
			}
		}
		if rng.IntN(4) == 0 {
			closeStore(t, s)
			continue
		}
		log := d.log.(*vfs.Mem).PowerCut(rng)
		state := d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		closeStore(t, s)
		d = disks{log, state}
	}
}

// A killed process loses nothing: offsets go on without a gap, as they do after a
// clean stop and with synchronous durability.
func TestOffsetsHaveNoGapsWhereNothingIsLost(t *testing.T) {
	for _, c := range []struct {
		name       string
		durability store.Durability
		boot       string
		clean      bool
		gap        bool
	}{
		{name: "killed", durability: store.None, boot: "1"},
		{name: "clean stop and a boot", durability: store.None, boot: "2", clean: true},
		{name: "synced", durability: store.Fsync, boot: "2"},
		{name: "power cut", durability: store.None, boot: "2", gap: true},
		{name: "power cut between syncs", durability: store.Interval, boot: "2", gap: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, ev := memDisks(), &events{}
			o := d.options(ev)
			o.Durability, o.Boot = c.durability, "1"
			s := open(t, "d", o)
			putTopic(t, s, "T", 2)
			q, idle := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
			for i := range 20 {
				appendBodies(t, s, q, strconv.Itoa(i))
			}
			if c.clean {
				closeStore(t, s)
			} else {
				log, state := d.log.(*vfs.Mem).Kill(), d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
				closeStore(t, s)
				d = disks{log, state}
			}
			o.FS, o.StateFS, o.Boot = d.log, d.state, c.boot
			s = open(t, "d", o)
			defer closeStore(t, s)
			a := appendBodies(t, s, q, "on")
			_, end, _ := s.Bounds(idle)
			said := len(ev.of(store.OffsetsSkipped))
			if gap := a.Offset > 20 && end > 0 && said == 1; gap != c.gap || !gap && (a.Offset != 20 || end != 0 || said != 0) {
				t.Fatalf("goes on at %d, the idle queue at %d, said %d times", a.Offset, end, said)
			}
			if got := readAll(t, s, q, 0); len(got) != 21 || got[a.Offset] != "on" {
				t.Fatalf("%v", got)
			}
			if got := readAll(t, s, q, 20); len(got) != 1 {
				t.Fatalf("%v", got)
			}
		})
	}
}

// That the last run was one without syncs is known whatever became of the state, and
// whether the next run syncs or not.
func TestOffsetsAreNotGivenTwiceAfterAPowerCutThatTookTheState(t *testing.T) {
	for _, became := range []string{"an older copy", "a backup", "lost"} {
		for _, then := range []store.Durability{store.Fsync, store.None} {
			lost := 0
			for seed := range uint64(20) {
				d, ev := memDisks(), &events{}
				o := d.options(ev)
				o.Boot = "1"
				s := open(t, "d", o)
				putTopic(t, s, "T", 1)
				q := store.Queue{Topic: "T"}
				appendBodies(t, s, q, "synced")
				closeStore(t, s)
				backup, copies := d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{}), d.copies(t)
				o.Durability = store.None
				s = open(t, "d", o)
				for i := range 20 {
					appendBodies(t, s, q, strconv.Itoa(i))
				}
				next := cut(d, rand.New(rand.NewPCG(seed, 18)))
				closeStore(t, s)
				switch became {
				case "an older copy":
					next.keepOnly(t, copies[0])
				case "a backup":
					next.state = backup
				default:
					next.keepOnly(t, "")
				}
				o.FS, o.StateFS, o.Durability, o.Boot, o.AcceptStateLoss = next.log, next.state, then, "2", became == "lost"
				s = open(t, "d", o)
				if len(readAll(t, s, q, 0)) < 21 {
					lost++
				}
				if a := appendBodies(t, s, q, "on"); a.Offset < 21 {
					t.Errorf("the state is %s, durability %d, seed %d: offset %d is given out twice", became, then, seed, a.Offset)
				}
				closeStore(t, s)
			}
			if lost == 0 {
				t.Error("no power cut took messages")
			}
		}
	}
}

// A start after a power cut may be cut off itself, anywhere.
func TestOffsetsAreNotGivenTwiceThoughTheStartIsCutOff(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.Durability, o.Boot = store.None, "1"
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 20 {
		appendBodies(t, s, q, strconv.Itoa(i))
	}
	rng := rand.New(rand.NewPCG(2, 18))
	found := cut(d, rng)
	closeStore(t, s)
	for _, then := range []store.Durability{store.Fsync, store.None} {
		failed := 0
		for n := int64(0); ; n++ {
			d := disks{found.log.(*vfs.Mem).Kill(), found.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{})}
			o := failAfter(d, n).options(ev)
			o.Durability, o.Boot = then, "2"
			s, err := store.Open("d", o)
			next := cut(d, rng)
			if err == nil {
				_ = s.Close() // some of it fails
				break
			}
			failed++
			o = next.options(ev)
			o.Boot = "3"
			s = open(t, "d", o)
			if a := appendBodies(t, s, q, "on"); a.Offset < 20 {
				t.Errorf("durability %d, cut off after %d calls: offset %d is given out twice", then, n, a.Offset)
			}
			closeStore(t, s)
		}
		if failed < 10 {
			t.Errorf("only %d starts were cut off", failed)
		}
	}
}

// Where queues go on behind a gap is known though an index is damaged, also of those
// that get no messages.
func TestGapOutlivesADamagedIndex(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.Durability, o.Boot = store.None, "1"
	s := open(t, "d", o)
	putTopic(t, s, "T", 2)
	q, idle := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
	for i := range 20 {
		appendBodies(t, s, q, strconv.Itoa(i))
		appendBodies(t, s, idle, strconv.Itoa(i))
	}
	// All was written out by chance.
	log, state := d.log.(*vfs.Mem).Kill(), d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{})
	closeStore(t, s)
	o.FS, o.StateFS, o.Boot = log, state, "2"
	s = open(t, "d", o)
	appendBodies(t, s, q, "on")
	_, want, _ := s.Bounds(idle)
	killed, state := log.Kill(), state.CrashClone(pebblefs.CrashCloneCfg{})
	closeStore(t, s)
	if want < store.SkippedOffsets {
		t.Fatalf("no gap: %d", want)
	}
	names, err := killed.List("d/log")
	if err != nil {
		t.Fatal(err)
	}
	spoiled := 0
	for _, n := range names {
		if !strings.HasSuffix(n, ".index") {
			continue
		}
		spoiled++
		one := killed.Kill()
		f, err := one.Open("d/log/" + n)
		if err == nil {
			_, err = f.WriteAt(make([]byte, 64), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		o.FS, o.StateFS = one, state.CrashClone(pebblefs.CrashCloneCfg{})
		s = open(t, "d", o)
		if _, end, _ := s.Bounds(idle); end != want {
			t.Errorf("%s is damaged: the idle queue goes on at %d, went on at %d", n, end, want)
		}
		closeStore(t, s)
	}
	if spoiled == 0 {
		t.Error("no index")
	}
}
