package demo

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// What a member process says of itself on its stdout, one line each: a word, the
// time in nanoseconds since 1970, then what the word needs. Each line is written
// in one call before the member goes on, so that a kill loses none.
const (
	wordReady   = "ready" // it will join when told so
	wordJoining = "joining"
	wordOwn     = "own"     // queues: begins to hand out messages of them
	wordRevoked = "revoked" // queues: hands out no more, by its own order
	wordLost    = "lost"    // queues: lost
	wordMessage = "message" // queue, number of the message: gives it to a handler
	wordEnded   = "ended"   // why
)

// neverSent is the number of a message that has none.
const neverSent = math.MaxUint64

// What a member process is told on its stdin. At its end it leaves.
const (
	commandJoin    = "join"
	commandLeave   = "leave"   // say goodbye and end
	commandSuspend = "suspend" // hand out no more, store progress, end without goodbye
)

// line is one line of a member.
type line struct {
	word   string
	at     time.Time
	queues []allocate.Queue
	seq    uint64 // of a message
	text   string // of an end
}

func (l line) String() string {
	var b strings.Builder
	b.WriteString(l.word)
	b.WriteByte(' ')
	b.WriteString(strconv.FormatInt(l.at.UnixNano(), 10))
	for _, q := range l.queues {
		fmt.Fprintf(&b, " %s/%d", q.Broker, q.ID)
	}
	switch l.word {
	case wordMessage:
		fmt.Fprintf(&b, " %d", l.seq)
	case wordEnded:
		b.WriteByte(' ')
		b.WriteString(strings.Join(strings.Fields(l.text), " "))
	}
	return b.String()
}

// parseLine reads a line; queues get the topic.
func parseLine(text, topic string) (line, error) {
	word, rest, _ := strings.Cut(text, " ")
	stamp, rest, _ := strings.Cut(rest, " ")
	ns, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return line{}, fmt.Errorf("line %q: no time", text)
	}
	l := line{word: word, at: time.Unix(0, ns)}
	fields := strings.Fields(rest)
	switch word {
	case wordReady, wordJoining:
	case wordEnded:
		l.text = strings.Join(fields, " ")
		return l, nil
	case wordMessage:
		if len(fields) != 2 {
			return line{}, fmt.Errorf("line %q: must have a queue and a number", text)
		}
		if l.seq, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
			return line{}, fmt.Errorf("line %q: no number: %w", text, err)
		}
		fields = fields[:1]
	case wordOwn, wordRevoked, wordLost:
	default:
		return line{}, fmt.Errorf("line %q: unknown word", text)
	}
	for _, f := range fields {
		q, err := parseQueue(f, topic)
		if err != nil {
			return line{}, fmt.Errorf("line %q: %w", text, err)
		}
		l.queues = append(l.queues, q)
	}
	return l, nil
}

func parseQueue(text, topic string) (allocate.Queue, error) {
	i := strings.LastIndexByte(text, '/')
	if i < 1 {
		return allocate.Queue{}, errors.New("queue must be broker/id")
	}
	id, err := strconv.ParseInt(text[i+1:], 10, 32)
	if err != nil {
		return allocate.Queue{}, fmt.Errorf("queue id: %w", err)
	}
	return allocate.Queue{Topic: topic, Broker: text[:i], ID: int32(id)}, nil
}
