package group

import (
	"cmp"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// owners is the ownership of a published view, kept up to date report by report:
// always what session.Owners says of its members.
type owners struct {
	claims map[allocate.Queue][]claim // the one that counts first
	sorted []session.Holding
	digest session.Digest // of sorted, if fresh
	fresh  bool
}

type claim struct {
	epoch session.Epoch
	id    string
}

// compareClaims orders claims of one queue as session.Owners does.
func compareClaims(a, b claim) int {
	return cmp.Or(b.epoch.Compare(a.epoch), session.CompareIDs(a.id, b.id))
}

func (o *owners) add(q allocate.Queue, c claim) {
	if o.claims == nil {
		o.claims = make(map[allocate.Queue][]claim)
	}
	list := o.claims[q]
	i, _ := slices.BinarySearchFunc(list, c, compareClaims)
	o.claims[q] = slices.Insert(list, i, c)
	if i == 0 {
		o.own(q, c.id)
	}
}

func (o *owners) remove(q allocate.Queue, c claim) {
	list := o.claims[q]
	i := slices.Index(list, c)
	if i < 0 {
		return
	}
	list = slices.Delete(list, i, i+1)
	switch {
	case len(list) == 0:
		delete(o.claims, q)
		o.own(q, "")
	default:
		o.claims[q] = list
		o.own(q, list[0].id)
	}
}

// own makes a client id the owner of a queue; the empty one makes it nobody's.
func (o *owners) own(q allocate.Queue, id string) {
	i, found := slices.BinarySearchFunc(o.sorted, q, func(h session.Holding, q allocate.Queue) int {
		return h.Queue.Compare(q)
	})
	switch {
	case found && o.sorted[i].ClientID == id:
		return
	case found && id == "":
		o.sorted = slices.Delete(o.sorted, i, i+1)
	case found:
		o.sorted[i].ClientID = id
	case id == "":
		return
	default:
		o.sorted = slices.Insert(o.sorted, i, session.Holding{Queue: q, ClientID: id})
	}
	o.fresh = false
}

// now returns the digest of the present ownership.
func (o *owners) now(topic string) session.Digest {
	if !o.fresh {
		o.digest, o.fresh = session.OwnersDigest(topic, o.sorted), true
	}
	return o.digest
}
