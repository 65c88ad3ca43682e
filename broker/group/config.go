package group

import (
	"cmp"
	"time"

	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// The protocol's times on the broker's side.
const (
	// QuietWindows without a report let expectations be compared.
	QuietWindows = 2
	// maxQuiet bounds the time without reports when signals are in vain.
	maxQuiet = 20 * time.Second
	// PauseLimit is how late a Wake may be before it counts as a pause of the
	// broker, after which no session ends before ExpiryGrace.
	PauseLimit  = 250 * time.Millisecond
	ExpiryGrace = time.Second
)

// Window is the notice window of a view with n members.
func Window(n int) time.Duration { return session.Window(n) }

// Config is what a Registry is made of. Zero values mean the defaults.
type Config struct {
	// Broker is this broker's name.
	Broker string
	// BrokerEpoch is greater than in every life of this broker before.
	BrokerEpoch uint64
	// SessionTimeout for members that ask for none. Default 10 s.
	SessionTimeout time.Duration
	// MinSessionTimeout and MaxSessionTimeout bound what members ask for.
	// Defaults 100 ms and 5 min.
	MinSessionTimeout time.Duration
	MaxSessionTimeout time.Duration
	// Tick is the members' interval of passes; nudges are never rarer. Default 20 s.
	Tick time.Duration
	// ForgetAfter is how long an empty group is remembered. Default 1 min.
	ForgetAfter time.Duration
	// Limits of what frames may carry.
	Limits Limits
	// Broken switches rules off, for tests that prove the checker sees it.
	Broken Broken
}

// Limits bound what a frame may carry. A frame beyond them ends its session
// with ReasonBadRequest. Zero values mean the defaults.
type Limits struct {
	NameBytes     int // of a group, client id, topic, broker, strategy. Default 255
	FilterBytes   int // Default 4096
	Subscriptions int // Default 1024
	Offers        int // Default 16
	OfferBytes    int // data of one offer. Default 65536
	Queues        int // in one frame, and reported of one topic by a member. Default 65536
	Brokers       int // silent ones in a frame. Default 1024
	Members       int // in a MemberList. Default 65536
}

// Broken switches single rules off, so that tests can show that the simulation
// notices. The zero value is the correct registry.
type Broken struct {
	NoCommitEpochCheck  bool // see [lease.Broken]
	GrantBeforeRelease  bool // see [lease.Broken]
	ReleaseWithoutEpoch bool // see [lease.Broken]
	// NoWarmUp serves every view at once, whoever is missing or has not reported.
	NoWarmUp bool
	// QuietIgnoresDrains compares expectations while queues are being drained.
	QuietIgnoresDrains bool
	// NoHealing sends no digests with heartbeats, no nudges, no quiet signals.
	NoHealing bool
}

// DefaultConfig returns the defaults for a broker that has no name or epoch yet.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	c.MinSessionTimeout = cmp.Or(c.MinSessionTimeout, 100*time.Millisecond)
	c.MaxSessionTimeout = cmp.Or(c.MaxSessionTimeout, 5*time.Minute)
	c.Tick = cmp.Or(c.Tick, 20*time.Second)
	c.ForgetAfter = cmp.Or(c.ForgetAfter, time.Minute)
	l := &c.Limits
	l.NameBytes = cmp.Or(l.NameBytes, 255)
	l.FilterBytes = cmp.Or(l.FilterBytes, 4096)
	l.Subscriptions = cmp.Or(l.Subscriptions, 1024)
	l.Offers = cmp.Or(l.Offers, 16)
	l.OfferBytes = cmp.Or(l.OfferBytes, 64<<10)
	l.Queues = cmp.Or(l.Queues, 65536)
	l.Brokers = cmp.Or(l.Brokers, 1024)
	l.Members = cmp.Or(l.Members, 65536)
	return c
}

// timeout is the effective session timeout for one that was asked for.
func (c *Config) timeout(asked time.Duration) time.Duration {
	if asked <= 0 {
		asked = c.SessionTimeout
	}
	return min(max(asked, c.MinSessionTimeout), c.MaxSessionTimeout)
}

func (b Broken) leases() lease.Broken {
	return lease.Broken{
		NoCommitEpochCheck:  b.NoCommitEpochCheck,
		GrantBeforeRelease:  b.GrantBeforeRelease,
		ReleaseWithoutEpoch: b.ReleaseWithoutEpoch,
	}
}
