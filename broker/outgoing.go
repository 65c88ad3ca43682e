package broker

import (
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/session"
)

// outgoing is a frame on its way to a member.
type outgoing struct {
	frame session.ToMember
	once  *once // of what others are told too; nil: of a frame for this one alone
}

// once is what many members are told, encoded by the first who sends it. A group
// of n members that n members join would otherwise encode n² of them.
type once struct {
	sync.Once
	data []byte
	err  error
}

func (o *once) encode(f func() ([]byte, error)) ([]byte, error) {
	o.Do(func() { o.data, o.err = f() })
	return o.data, o.err
}

// message makes what goes to gRPC. The encoding of most frames fits in 128 bytes.
func (o *outgoing) message() (*rawcodec.Encoded, error) {
	const most = 128
	if o.once == nil {
		b, err := wire.AppendResponse(make([]byte, 0, most), o.frame)
		return &rawcodec.Encoded{Data: mem.BufferSlice{mem.SliceBuffer(b)}}, err
	}
	if f, ok := o.frame.(session.ViewAnswer); ok {
		view, err := o.once.encode(func() ([]byte, error) { return wire.AppendView(nil, f.View) })
		head := wire.AppendViewAnswer(make([]byte, 0, most), f.Seq, f.Warming, len(view))
		return &rawcodec.Encoded{Data: mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(view)}}, err
	}
	b, err := o.once.encode(func() ([]byte, error) { return wire.AppendResponse(nil, o.frame) })
	return &rawcodec.Encoded{Data: mem.BufferSlice{mem.SliceBuffer(b)}}, err
}

// alike finds out which frames are the same as the last of their kind. The core
// tells all members of a group one after the other, so one of each kind is enough.
type alike struct {
	notice, view, small outgoing
}

// outgoing takes a frame that may be the same as others.
func (a *alike) outgoing(f session.ToMember) outgoing {
	switch f := f.(type) {
	case session.GroupChanged:
		last, _ := a.notice.frame.(session.GroupChanged)
		if a.notice.once == nil || !sameNotice(&last, &f) {
			a.notice = outgoing{f, new(once)}
		}
		return a.notice
	case session.ViewAnswer:
		if len(f.View.Members) == 0 {
			return outgoing{frame: f}
		}
		last, _ := a.view.frame.(session.ViewAnswer)
		if a.view.once == nil || !sameView(&last.View, &f.View) {
			a.view = outgoing{f, new(once)}
		}
		return outgoing{f, a.view.once} // the number of the request differs
	case session.OwnersChanged, session.ViewReady, session.Nudge: // can be compared
		if a.small.once == nil || a.small.frame != f {
			a.small = outgoing{f, new(once)}
		}
		return a.small
	default: // for one member
		return outgoing{frame: f}
	}
}

// The core shares the lists of frames that it sends to many and changes none, so
// lists are the same if they lie in the same place.
func sameNotice(a, b *session.GroupChanged) bool {
	return a.Topic == b.Topic && a.Version == b.Version && a.Previous == b.Previous && a.Inputs == b.Inputs && a.OwnersBefore == b.OwnersBefore &&
		sameList(a.Joined, b.Joined) && sameList(a.Left, b.Left) && sameList(a.Added, b.Added) && sameList(a.Removed, b.Removed)
}

func sameView(a, b *session.View) bool {
	return a.Topic == b.Topic && a.Version == b.Version && a.Inputs == b.Inputs && a.Owners == b.Owners &&
		sameList(a.Queues, b.Queues) && sameList(a.Members, b.Members)
}

func sameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
