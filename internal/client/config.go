package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/routes"
)

// Constants of the client. All of them bound how long somebody may wait.
const (
	// DefaultCallTimeout bounds a call to a broker, beyond a long poll's wait.
	DefaultCallTimeout = 5 * time.Second
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 3 * time.Second
	// Reconnects are tried after backoffBase, growing to backoffMax.
	backoffBase = 50 * time.Millisecond
	backoffMax  = time.Second
	// keepaliveTime without a sign of life a ping is sent, and keepaliveTimeout
	// without an answer the connection is given up.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// sweepEvery is how exactly timeouts of pipelined calls are kept.
	sweepEvery = 250 * time.Millisecond
	// MaxMessageBytes is the largest protobuf message accepted. It must hold the
	// largest batch.
	MaxMessageBytes = 64 << 20
)

// Dialer opens a connection to an address as routes and name server lists have it.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Config of a client. Only NameServers is required.
type Config struct {
	// NameServers are host:port addresses, all of which are asked; or one element
	// that says where the list is: "file:PATH" or an http or https URL.
	NameServers []string
	// CallTimeout bounds each call, beyond a long poll's wait. Default: 5 s.
	CallTimeout time.Duration
	// Dialer replaces the ordinary TCP dialer. A client with one is never shared
	// by others than those it is given to.
	Dialer Dialer
	// Logger: default none.
	Logger *zap.Logger
}

func (c *Config) setDefaults() {
	if c.CallTimeout == 0 {
		c.CallTimeout = DefaultCallTimeout
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.NameServers = slices.Clone(c.NameServers)
	slices.Sort(c.NameServers)
	c.NameServers = slices.Compact(c.NameServers)
}

// Check returns what [Open] would find wrong with the settings, and opens nothing.
func (c Config) Check() error {
	c.setDefaults()
	return c.validate()
}

func (c *Config) validate() error {
	var errs []error
	if _, err := routes.ParseAll(c.NameServers); err != nil {
		errs = append(errs, fmt.Errorf("name servers: %w", err))
	}
	if c.CallTimeout < 0 {
		errs = append(errs, fmt.Errorf("call timeout %v: must be positive", c.CallTimeout))
	}
	return errors.Join(errs...)
}

// key names the settings of clients that may be shared; "" if it may not.
func (c *Config) key() string {
	if c.Dialer != nil {
		return ""
	}
	return strings.Join(c.NameServers, ",") + " " + c.CallTimeout.String()
}
