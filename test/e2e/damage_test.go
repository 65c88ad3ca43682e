//go:build e2e && unix

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/producer"
)

const (
	damageTopic  = "shelf"
	damageQueues = 4
)

// stored is a broker that was filled and ended, with what its files hold.
type stored struct {
	t        *testing.T
	c        *cluster
	b        *node
	names    []string
	queues   []allocate.Queue
	acked    map[uint64]place
	pristine string // copy of the data directory
	segments []segment
	next     uint64 // message id
}

// segment is a log file.
type segment struct {
	name    string // without directory
	batches []span
	end     int64
}

// span is a batch in a segment.
type span struct {
	at, group int64
	size      int
	queue     allocate.Queue
	base      int64
	count     int
}

// fill starts a broker with small files, stores messages, ends it with kill -9
// or cleanly, and keeps a copy of its files.
func fill(t *testing.T, kill bool) *stored {
	t.Helper()
	s := &stored{t: t, c: newCluster(t, []string{"broker-a"}, "--segment-size", "192KiB", "--max-batch-bytes", "65536")}
	s.b, s.names, s.queues = s.c.nodes["broker-a"], []string{s.c.names.address}, queuesOf(damageTopic, "broker-a", damageQueues)
	s.c.setQueues(damageTopic, damageQueues, true)
	s.acked = s.send(1500)
	s.end(kill)
	s.pristine = filepath.Join(s.c.dir, "pristine")
	if err := os.CopyFS(s.pristine, os.DirFS(s.c.dataDir("broker-a"))); err != nil {
		t.Fatal(err)
	}
	s.scan()
	return s
}

// send stores n more messages in small batches and returns where they are.
func (s *stored) send(n int) map[uint64]place {
	s.t.Helper()
	l := newLoad(damageTopic)
	if err := l.produce(s.t.Context(), s.names, s.next, n, producer.WithSelector(producer.ByKey()), producer.WithBatchBytes(4<<10)); err != nil {
		s.t.Fatal(err)
	}
	l.check(s.t)
	s.next += uint64(n)
	if len(l.acked) != n {
		s.t.Errorf("%d of %d messages acknowledged", len(l.acked), n)
	}
	return l.snapshot()
}

func (s *stored) end(kill bool) {
	s.t.Helper()
	if kill {
		s.b.proc.kill()
		return
	}
	s.b.proc.stop(stopLimit)
}

func (s *stored) log() string { return filepath.Join(s.c.dataDir("broker-a"), "log") }

// restore brings the files back to what they were after fill.
func (s *stored) restore() {
	s.t.Helper()
	dir := s.c.dataDir("broker-a")
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(s.pristine)); err != nil {
		s.t.Fatal(err)
	}
}

// scan finds the batches in the log.
func (s *stored) scan() {
	t := s.t
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.pristine, "log", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	messages := 0
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seg := segment{name: filepath.Base(name)}
		for seg.end+batch.HeaderSize <= int64(len(raw)) && binary.LittleEndian.Uint32(raw[seg.end:]) != 0 {
			h, err := batch.Parse(raw[seg.end:])
			if err != nil {
				t.Fatalf("%s at %d: %v", name, seg.end, err)
			}
			seg.batches = append(seg.batches, span{
				at: seg.end, group: int64(h.Stamp.Group), size: h.Length, base: h.Stamp.BaseOffset, count: h.Count,
				queue: allocate.Queue{Topic: string(h.Topic), Broker: "broker-a", ID: h.Queue},
			})
			seg.end += int64(h.Length)
			messages += h.Count
		}
		if len(seg.batches) > 0 {
			s.segments = append(s.segments, seg)
		}
	}
	if messages != len(s.acked) || len(s.segments) < 4 {
		t.Fatalf("%d messages in %d segments, want %d in at least 4", messages, len(s.segments), len(s.acked))
	}
}

// pick chooses a batch anywhere in the log.
func (s *stored) pick(chance *rand.Rand) (segment, int) {
	seg := s.segments[chance.IntN(len(s.segments))]
	return seg, chance.IntN(len(seg.batches))
}

// change changes a file of the broker in place.
func (s *stored) change(name string, f func(f *os.File) error) {
	s.t.Helper()
	file, err := os.OpenFile(filepath.Join(s.log(), name), os.O_RDWR, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := f(file); err != nil {
		s.t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// flip turns one bit of a file over.
func (s *stored) flip(name string, at int64, bit int) {
	s.t.Helper()
	s.change(name, func(f *os.File) error {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			return err
		}
		b[0] ^= 1 << bit
		_, err := f.WriteAt(b[:], at)
		return err
	})
}

// finding is what the broker said of its files.
type finding struct {
	Kind     string `json:"kind"`
	File     string `json:"file"`
	Position int64  `json:"position"`
	Level    string `json:"level"`
}

func (f finding) String() string {
	return fmt.Sprintf("%s %s at %d (%s)", f.Kind, filepath.Base(f.File), f.Position, f.Level)
}

func (s *stored) findings() (out []finding) {
	for line := range strings.Lines(s.b.proc.log.String()) {
		var f finding
		if json.Unmarshal([]byte(line), &f) == nil && f.Kind != "" {
			out = append(out, f)
		}
	}
	return out
}

// serve starts the broker on the files as they are and checks that it serves
// everything but the spans named, hands out nothing of those, and takes and
// serves new messages. It returns what it reported, and ends it.
func (s *stored) serve(what string, lost []span) []finding {
	t := s.t
	t.Helper()
	s.b.start()
	s.c.awaitBrokers(1)
	more := s.send(50)
	isLost := func(p place) bool {
		return slices.ContainsFunc(lost, func(b span) bool { return b.queue == p.queue && b.base <= p.offset && p.offset < b.base+int64(b.count) })
	}
	want, gone := make(map[uint64]place), 0
	for id, p := range s.acked {
		if isLost(p) {
			gone++
			continue
		}
		want[id] = p
	}
	r := newShelf(t)
	all := maps.Clone(want)
	maps.Copy(all, more) // perhaps to places that were cut off
	r.read(s.names, s.queues, func() (bool, string) {
		m := r.missing(all)
		return len(m) == 0, fmt.Sprintf("%s: %d of %d messages are not served, for example %v", what, len(m), len(all), sample(m, all))
	})
	for p, id := range r.at {
		if isLost(p) && all[id] != p {
			t.Errorf("%s: message %d of a damaged place was handed out", what, id)
		}
	}
	found := s.findings()
	s.b.proc.kill()
	t.Logf("%s: %d of %d messages served, %d lost with the damage, new ones taken; reported: %v", what, len(want), len(s.acked), gone, found)
	return found
}

func sample(ids []uint64, of map[uint64]place) any {
	if len(ids) == 0 {
		return "none"
	}
	return of[slices.Min(ids)]
}

// reported fails unless there is a finding of this kind, file and position.
func reported(t *testing.T, found []finding, kind, file string, position int64) {
	t.Helper()
	if !slices.ContainsFunc(found, func(f finding) bool {
		return f.Kind == kind && filepath.Base(f.File) == file && f.Position == position && (f.Level == "warn" || f.Level == "error")
	}) {
		t.Errorf("no %s of %s at %d was reported, but %v", kind, file, position, found)
	}
}

// A bit flipped anywhere in the log of a killed broker loses the batch that it
// is in and no other. In what was written last it cannot be told from an
// unfinished write, and all that was written together with it is cut.
func TestDamageFlippedBitInTheLogOfAKilledBroker(t *testing.T) {
	chance, s := seeded(t), fill(t, true)
	for range number(t, "E2E_DAMAGES", 6) {
		s.restore()
		seg, i := s.pick(chance)
		b := seg.batches[i]
		at, bit := b.at+chance.Int64N(int64(b.size)), chance.IntN(8)
		s.flip(seg.name, at, bit)
		lost, kind := []span{b}, "damaged"
		last := s.segments[len(s.segments)-1]
		if final := last.batches[len(last.batches)-1]; seg.name == last.name && b.at >= final.group {
			lost, kind = seg.batches[i:], "torn-tail"
		}
		found := s.serve(fmt.Sprintf("bit %d of byte %d of %s, batch at %d", bit, at, seg.name, b.at), lost)
		reported(t, found, kind, seg.name, b.at)
	}
	s.c.names.proc.stop(stopLimit)
}

// The same after a clean stop loses that batch alone.
func TestDamageFlippedBitInTheLogOfAStoppedBroker(t *testing.T) {
	chance, s := seeded(t), fill(t, false)
	for range number(t, "E2E_DAMAGES", 4) {
		s.restore()
		seg, i := s.pick(chance)
		b := seg.batches[i]
		at, bit := b.at+chance.Int64N(int64(b.size)), chance.IntN(8)
		s.flip(seg.name, at, bit)
		found := s.serve(fmt.Sprintf("bit %d of byte %d of %s, batch at %d", bit, at, seg.name, b.at), []span{b})
		reported(t, found, "damaged", seg.name, b.at)
	}
	s.c.names.proc.stop(stopLimit)
}

// A log that ends in the middle of a batch loses what is cut off; garbage after
// its end loses nothing. Both are reported where they begin.
func TestDamageTornTail(t *testing.T) {
	chance, s := seeded(t), fill(t, true)
	last := s.segments[len(s.segments)-1]
	for range number(t, "E2E_DAMAGES", 3) {
		s.restore()
		i := chance.IntN(len(last.batches))
		b := last.batches[i]
		cut := b.at + 4 + chance.Int64N(int64(b.size)-4)
		s.change(last.name, func(f *os.File) error { return f.Truncate(cut) })
		found := s.serve(fmt.Sprintf("%s cut at %d, in the batch at %d", last.name, cut, b.at), last.batches[i:])
		reported(t, found, "torn-tail", last.name, b.at)

		s.restore()
		garbage := make([]byte, 1+chance.IntN(3000))
		for i := range garbage {
			garbage[i] = byte(1 + chance.IntN(255))
		}
		s.change(last.name, func(f *os.File) error {
			_, err := f.WriteAt(garbage, last.end)
			return err
		})
		found = s.serve(fmt.Sprintf("%d bytes of garbage at the end of %s, %d", len(garbage), last.name, last.end), nil)
		reported(t, found, "torn-tail", last.name, last.end)
	}
	s.c.names.proc.stop(stopLimit)
}

// A bit flipped anywhere in an index loses nothing: it is reported and made anew,
// or it was in bytes that nobody reads.
func TestDamageFlippedBitInAnIndex(t *testing.T) {
	chance, s := seeded(t), fill(t, true)
	indexes, err := filepath.Glob(filepath.Join(s.pristine, "log", "*.index"))
	if err != nil || len(indexes) == 0 {
		t.Fatalf("no index: %v", err)
	}
	for range number(t, "E2E_DAMAGES", 4) {
		s.restore()
		name := indexes[chance.IntN(len(indexes))]
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		at, bit := chance.Int64N(info.Size()), chance.IntN(8)
		s.flip(filepath.Base(name), at, bit)
		found := s.serve(fmt.Sprintf("bit %d of byte %d of %s", bit, at, filepath.Base(name)), nil)
		for _, f := range found {
			if f.Kind == "damaged" || f.Kind == "torn-tail" {
				t.Errorf("messages called damaged: %v", f)
			}
		}
	}
	s.c.names.proc.stop(stopLimit)
}
