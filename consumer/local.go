package consumer

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
)

// localOffsets is the progress of a broadcasting member in a file. It is written
// anew beside the old one, synced, and put in its place; the one before is kept
// as a backup. A file that cannot be read costs a warning, and then the backup
// counts or, without one, the start policy.
type localOffsets struct {
	path, group string

	mu      sync.Mutex
	offsets map[allocate.Queue]int64
	dirty   bool
}

// localFile is the file's content; Sum is over the JSON of Offsets.
type localFile struct {
	Group   string        `json:"group"`
	Offsets []localOffset `json:"offsets"`
	Sum     uint32        `json:"crc32c"`
}

type localOffset struct {
	Topic  string `json:"topic"`
	Broker string `json:"broker"`
	Queue  int32  `json:"queue"`
	Offset int64  `json:"offset"`
}

func openLocalOffsets(path, group string, log *zap.Logger) *localOffsets {
	l := &localOffsets{path: path, group: group, offsets: make(map[allocate.Queue]int64)}
	for _, p := range []string{path, path + ".bak"} {
		f, err := l.read(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			log.Warn("offset file cannot be used", zap.String("file", p), zap.Error(err))
			continue
		}
		for _, o := range f.Offsets {
			l.offsets[allocate.Queue{Topic: o.Topic, Broker: o.Broker, ID: o.Queue}] = o.Offset
		}
		break
	}
	return l
}

func (l *localOffsets) read(path string) (localFile, error) {
	var f localFile
	b, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("decode: %w", err)
	}
	if f.Group != l.group {
		return f, fmt.Errorf("belongs to group %q", f.Group)
	}
	sum, err := sumOf(f.Offsets)
	if err != nil {
		return f, err
	}
	if sum != f.Sum {
		return f, fmt.Errorf("checksum is %08x, should be %08x", sum, f.Sum)
	}
	for _, o := range f.Offsets {
		if o.Offset < 0 {
			return f, fmt.Errorf("offset %d of queue %s/%s/%d is negative", o.Offset, o.Topic, o.Broker, o.Queue)
		}
	}
	return f, nil
}

func sumOf(offsets []localOffset) (uint32, error) {
	b, err := json.Marshal(offsets)
	if err != nil {
		return 0, fmt.Errorf("encode offsets: %w", err)
	}
	return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)), nil
}

func (l *localOffsets) get(q allocate.Queue) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, ok := l.offsets[q]
	return o, ok
}

// any tells whether there is progress on any queue of a topic.
func (l *localOffsets) any(topic string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q := range l.offsets {
		if q.Topic == topic {
			return true
		}
	}
	return false
}

// save stores progress; that of queues not named stays.
func (l *localOffsets) save(offsets map[allocate.Queue]int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q, o := range offsets {
		if old, ok := l.offsets[q]; !ok || old != o {
			l.offsets[q] = o
			l.dirty = true
		}
	}
	if !l.dirty {
		return nil
	}
	f := localFile{Group: l.group, Offsets: make([]localOffset, 0, len(l.offsets))}
	for q, o := range l.offsets {
		f.Offsets = append(f.Offsets, localOffset{q.Topic, q.Broker, q.ID, o})
	}
	slices.SortFunc(f.Offsets, func(a, b localOffset) int {
		return allocate.Queue{Topic: a.Topic, Broker: a.Broker, ID: a.Queue}.Compare(allocate.Queue{Topic: b.Topic, Broker: b.Broker, ID: b.Queue})
	})
	var err error
	if f.Sum, err = sumOf(f.Offsets); err != nil {
		return err
	}
	b, err := json.MarshalIndent(f, "", "\t")
	if err != nil {
		return fmt.Errorf("encode offsets: %w", err)
	}
	if err := replace(l.path, append(b, '\n')); err != nil {
		return err
	}
	l.dirty = false
	return nil
}

// replace puts a new file in the place of an old one, which becomes the backup.
func replace(path string, content []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("create offset file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name()) // what is left of a failure; the error is the first one
		}
	}()
	_, err = tmp.Write(content)
	if err == nil {
		err = tmp.Sync()
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("write offset file: %w", err)
	}
	if err := os.Rename(path, path+".bak"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep old offset file: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("put offset file in place: %w", err)
	}
	return syncDir(filepath.Dir(path))
}
