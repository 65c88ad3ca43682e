package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"

	"github.com/tacitmq/tacit/internal/vfs"
)

// An index file says where the batches of each queue are in one segment, so that
// opening the store need not read the segment. Little-endian:
//
//	 0  "TCI\x02"
//	 4  u32 segment id
//	 8  i64 end: the index covers the segment up to here
//	16  u32 number of queues        20  u32 bytes of the directory
//	24  u32 number of entries       28  u32 number of keys
//	32  u32 bytes of the windows    36  u32 CRC32C of bytes 0-35 and 40-55, directory and windows
//	40  i64 newest store time       48  u32 1 if the segment was left: nothing follows end   52  u32 0
//	56  directory: for every queue that was deleted while the segment was written, and
//	    then for every queue of the store, with batches here or not
//	      u8 length of topic, topic, u32 queue id, i64 base offset, i64 next offset,
//	      i64 first and i64 last store time, u32 first entry, u32 entries, u32 CRC32C of the entries
//	      If the highest bit of the queue id is set it was deleted at position next of the segment
//	    windows: see encodeWindows
//	    entries, 16 bytes each: u32 offset less base, u32 position, u32 size, u32 tag bits
//	    keys, 16 bytes each, sorted: u64 hash, u32 queue in the directory, u32 offset less base
const (
	indexMagic  = "TCI\x02"
	indexHeader = 56
	entryBytes  = 16
	keyBytes    = 16
	// anyKey stands for all keys of a batch that does not list them.
	anyKey = 0
)

var errIndex = errors.New("index is damaged")

// keyEntry says that a batch has a message with a key of this hash.
type keyEntry struct {
	hash   uint64
	queue  *queue
	offset int64
}

// queueState is a queue as it stood when its segment was left.
type queueState struct {
	queue *queue
	id    Queue
	span  span // n = 0 if it has no batches in the segment
	// dead: queue was deleted, at position span.next of the segment; it may have been
	// made again. queue is nil.
	dead bool
}

// deadBit of a queue id in a directory.
const deadBit = 1 << 31

// sealing is what the index of a segment is made of.
type sealing struct {
	end     int64
	left    bool  // the segment was left
	last    int64 // newest store time
	queues  []queueState
	keys    []keyEntry
	windows []byte
}

// encode appends the index file to b. It sets at, n and sum of the spans.
func (x *sealing) encode(b []byte, id uint32) []byte {
	le := binary.LittleEndian
	start := len(b)
	b = append(b, make([]byte, indexHeader)...)
	at := uint32(0)
	place := make(map[*queue]uint32, len(x.queues))
	for i := range x.queues {
		q := &x.queues[i]
		q.span.at, q.span.n, q.span.sum = at, uint32(len(q.span.entries)), sumEntries(q.span.entries)
		at += q.span.n
		place[q.queue] = uint32(i)
		b = append(b, byte(len(q.id.Topic)))
		b = append(b, q.id.Topic...)
		id := uint32(q.id.ID)
		if q.dead {
			id |= deadBit
		}
		b = le.AppendUint32(b, id)
		for _, v := range []int64{q.span.base, q.span.next, q.span.first, q.span.last} {
			b = le.AppendUint64(b, uint64(v))
		}
		b = le.AppendUint32(b, q.span.at)
		b = le.AppendUint32(b, q.span.n)
		b = le.AppendUint32(b, q.span.sum)
	}
	dir := len(b) - start - indexHeader
	b = append(b, x.windows...)
	sum := crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), b[start+indexHeader:])
	for i := range x.queues {
		for _, e := range x.queues[i].span.entries {
			b = appendEntry(b, e)
		}
	}
	keys := 0
	slices.SortFunc(x.keys, func(a, b keyEntry) int {
		if a.hash != b.hash {
			if a.hash < b.hash {
				return -1
			}
			return 1
		}
		return int(max(-1, min(1, a.offset-b.offset)))
	})
	for _, k := range x.keys {
		i, ok := place[k.queue]
		if !ok {
			continue // deleted since
		}
		b = le.AppendUint64(b, k.hash)
		b = le.AppendUint32(b, i)
		b = le.AppendUint32(b, uint32(k.offset-x.queues[i].span.base))
		keys++
	}
	h := b[start:]
	copy(h, indexMagic)
	le.PutUint32(h[4:], id)
	le.PutUint64(h[8:], uint64(x.end))
	le.PutUint32(h[16:], uint32(len(x.queues)))
	le.PutUint32(h[20:], uint32(dir))
	le.PutUint32(h[24:], at)
	le.PutUint32(h[28:], uint32(keys))
	le.PutUint32(h[32:], uint32(len(x.windows)))
	le.PutUint64(h[40:], uint64(x.last))
	if x.left {
		h[48] = 1
	}
	le.PutUint32(h[36:], indexSum(h[:indexHeader], sum))
	return b
}

func indexSum(header []byte, rest uint32) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Update(rest, t, header[:36]), t, header[40:indexHeader])
}

func appendEntry(b []byte, e entry) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, e.delta)
	b = le.AppendUint32(b, e.pos)
	b = le.AppendUint32(b, e.size)
	return le.AppendUint32(b, e.tags)
}

func sumEntries(entries []entry) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	var sum uint32
	var b [entryBytes]byte
	for _, e := range entries {
		sum = crc32.Update(sum, t, appendEntry(b[:0], e))
	}
	return sum
}

// index is the open index file of a segment.
type index struct {
	file            vfs.File
	id              uint32
	end             int64
	left            bool
	last            int64
	entriesAt       int64
	entries         uint32
	keysAt          int64
	keys            uint32
	dirBytes        int64
	directory, wins []byte // nil once the store is open
}

// openIndex reads the header, directory and windows of an index file.
func openIndex(fs vfs.FS, name string, id uint32) (x *index, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
		}
	}()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	var h [indexHeader]byte
	if size < indexHeader {
		return nil, fmt.Errorf("%w: %d bytes", errIndex, size)
	}
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	dir, wins := int64(le.Uint32(h[20:])), int64(le.Uint32(h[32:]))
	entries, keys := int64(le.Uint32(h[24:])), int64(le.Uint32(h[28:]))
	if string(h[:4]) != indexMagic || le.Uint32(h[4:]) != id || indexHeader+dir+wins+entryBytes*entries+keyBytes*keys != size {
		return nil, fmt.Errorf("%w: not of segment %d, or of another size", errIndex, id)
	}
	rest := make([]byte, dir+wins)
	if _, err := f.ReadAt(rest, indexHeader); err != nil {
		return nil, err
	}
	sum := crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), rest)
	if indexSum(h[:], sum) != le.Uint32(h[36:]) {
		return nil, fmt.Errorf("%w: checksum does not match", errIndex)
	}
	return &index{
		file: f, id: id, end: int64(le.Uint64(h[8:])), left: h[48] == 1, last: int64(le.Uint64(h[40:])),
		entriesAt: indexHeader + dir + wins, entries: uint32(entries),
		keysAt: indexHeader + dir + wins + entryBytes*entries, keys: uint32(keys),
		dirBytes: dir, directory: rest[:dir:dir], wins: rest[dir:],
	}, nil
}

// queues returns the directory.
func (x *index) queues() ([]queueState, error) {
	b := x.directory
	if b == nil {
		b = make([]byte, x.dirBytes)
		if _, err := x.file.ReadAt(b, indexHeader); err != nil {
			return nil, fmt.Errorf("read directory: %w", err)
		}
	}
	var out []queueState
	r := reader{b: b}
	for len(r.b) > 0 && !r.bad {
		topic := string(r.bytes(int(r.u8())))
		id := r.u32()
		q := queueState{id: Queue{Topic: topic, ID: int32(id &^ deadBit)}, dead: id&deadBit != 0}
		q.span = span{base: int64(r.u64()), next: int64(r.u64()), first: int64(r.u64()), last: int64(r.u64()), at: r.u32(), n: r.u32(), sum: r.u32()}
		if uint64(q.span.at)+uint64(q.span.n) > uint64(x.entries) {
			r.bad = true
		}
		out = append(out, q)
	}
	if r.bad {
		return nil, fmt.Errorf("%w: directory is malformed", errIndex)
	}
	return out, nil
}

// load reads the entries of a span.
func (x *index) load(sp *span) ([]entry, error) {
	b := make([]byte, entryBytes*int(sp.n))
	if _, err := x.file.ReadAt(b, x.entriesAt+entryBytes*int64(sp.at)); err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	if sum := crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), b); sum != sp.sum {
		return nil, fmt.Errorf("%w: entries %d to %d", errIndex, sp.at, sp.at+sp.n)
	}
	le := binary.LittleEndian
	out := make([]entry, sp.n)
	for i := range out {
		e := b[entryBytes*i:]
		out[i] = entry{delta: le.Uint32(e), pos: le.Uint32(e[4:]), size: le.Uint32(e[8:]), tags: le.Uint32(e[12:])}
	}
	return out, nil
}

// allKeys reads the keys as they are.
func (x *index) allKeys() ([]byte, error) {
	b := make([]byte, keyBytes*int(x.keys))
	if len(b) == 0 {
		return nil, nil
	}
	if _, err := x.file.ReadAt(b, x.keysAt); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return b, nil
}

// lookup calls yield with the queue (its place in the directory) and the offset
// (less its base) of each key with the given hash.
func (x *index) lookup(hash uint64, yield func(queue, delta uint32)) error {
	le := binary.LittleEndian
	var b [keyBytes]byte
	var failed error
	at := func(i int) uint64 {
		if _, err := x.file.ReadAt(b[:], x.keysAt+keyBytes*int64(i)); err != nil && failed == nil {
			failed = fmt.Errorf("read keys: %w", err)
		}
		return le.Uint64(b[:])
	}
	i := sort.Search(int(x.keys), func(i int) bool { return failed != nil || at(i) >= hash })
	for ; i < int(x.keys) && failed == nil && at(i) == hash; i++ {
		yield(le.Uint32(b[8:]), le.Uint32(b[12:]))
	}
	return failed
}

// reader takes integers off bytes; bad is set when there are too few.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.b) {
		r.bad = true
		r.b = nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() uint8 {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// encodeWindows writes the windows that a restart must know, the last used
// first: u32 number of windows; for each u64 producer, u32 queue in the
// directory, u32 epoch, then as varints: gone, number of batches, for each
// sequence, count, offset and store time, each but the count less that of the
// batch before; then u32 number of origins, for each u64 id, i64 offset, i64 time.
func (d *dedup) encodeWindows(place map[*queue]uint32) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0)
	n := uint32(0)
	for _, k := range d.recent() {
		i, ok := place[k.queue]
		if !ok {
			continue
		}
		w := d.windows[k]
		gone, seqs := w.gone, w.seqs
		if older := len(seqs) - savedBatches; older > 0 && len(b) > savedWindows {
			gone, seqs = max(gone, seqs[older-1].end()), seqs[older:]
		}
		b = le.AppendUint64(b, k.producer)
		b = le.AppendUint32(b, i)
		b = le.AppendUint32(b, w.epoch)
		b = binary.AppendUvarint(b, gone)
		b = binary.AppendUvarint(b, uint64(len(seqs)))
		var last sequence
		for _, s := range seqs {
			b = binary.AppendUvarint(b, s.seq-last.seq)
			b = binary.AppendUvarint(b, uint64(s.count))
			b = binary.AppendVarint(b, s.offset-last.offset)
			b = binary.AppendVarint(b, s.time-last.time)
			last = s
		}
		n++
	}
	le.PutUint32(b, n)
	b = le.AppendUint32(b, uint32(len(d.order)))
	for _, id := range d.order {
		a := d.origins[id]
		b = le.AppendUint64(b, id)
		b = le.AppendUint64(b, uint64(a.Offset))
		b = le.AppendUint64(b, uint64(a.StoreTime))
	}
	return b
}

// loadWindows reads what encodeWindows wrote. queues is the directory; windows
// of queues that are nil there are left out.
func (d *dedup) loadWindows(b []byte, queues []*queue) error {
	r := reader{b: b}
	for range r.u32() {
		producer, i := r.u64(), r.u32()
		w := &window{epoch: r.u32(), gone: r.uvarint()}
		n := r.uvarint()
		if r.bad || int(i) >= len(queues) || n > windowBatches {
			return fmt.Errorf("%w: windows are malformed", errIndex)
		}
		var last sequence
		for range n {
			last.seq += r.uvarint()
			last.count = uint32(r.uvarint())
			last.offset += r.varint()
			last.time += r.varint()
			w.seqs = append(w.seqs, last)
		}
		if q := queues[i]; q != nil {
			d.windows[windowKey{producer, q}] = w
		}
	}
	for range r.u32() {
		id, a := r.u64(), Appended{Offset: int64(r.u64()), StoreTime: int64(r.u64())}
		if r.bad {
			break
		}
		d.addOrigin(id, a)
	}
	d.keep()
	if r.bad || len(r.b) > 0 {
		return fmt.Errorf("%w: windows are malformed", errIndex)
	}
	return nil
}
