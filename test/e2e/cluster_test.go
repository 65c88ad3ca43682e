//go:build e2e && unix

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tacitmq/tacit/internal/admin"
)

// How long things may take before a test gives up: generous, since a machine may
// be busy with more than this.
const (
	startLimit  = 20 * time.Second
	stopLimit   = 15 * time.Second
	settleLimit = 30 * time.Second
	flowLimit   = 60 * time.Second
)

// cluster is one name server and some brokers, each a process.
type cluster struct {
	t     *testing.T
	dir   string
	names *node
	nodes map[string]*node // brokers by name
	admin *admin.Client
}

// node is a server that keeps its address and its data over restarts.
type node struct {
	c       *cluster
	name    string
	address string
	program string
	args    []string
	serves  string // what it says once it serves
	proc    *proc
}

// newCluster starts a name server and brokers with more flags.
func newCluster(t *testing.T, brokers []string, flags ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), nodes: make(map[string]*node)}
	c.names = &node{
		c: c, name: "nameserver", address: freeAddress(t), program: "nameserver", serves: "nameserver listening on",
		args: []string{"--http", "127.0.0.1:0", "--log-format", "json"},
	}
	c.names.start()
	for _, name := range brokers {
		c.nodes[name] = &node{
			c: c, name: name, address: freeAddress(t), program: "broker", serves: `"broker serves"`,
			args: append([]string{
				"--name", name, "--nameservers", c.names.address, "--data-dir", c.dataDir(name), "--min-free", "1MiB",
				"--http", "127.0.0.1:0", "--log-format", "json",
			}, flags...),
		}
		c.nodes[name].start()
	}
	var err error
	if c.admin, err = admin.Open(admin.Config{NameServers: []string{c.names.address}, Timeout: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.admin.Close)
	c.awaitBrokers(len(brokers))
	return c
}

func (c *cluster) dataDir(broker string) string { return filepath.Join(c.dir, broker) }

// start starts the node and waits until it serves; it returns how long that took.
func (n *node) start() time.Duration {
	n.c.t.Helper()
	args := append([]string{"--listen", n.address}, n.args...)
	if n.program == "broker" {
		args = append(args, "--advertise", n.address)
	}
	n.proc = start(n.c.t, n.name, n.program, args...)
	n.proc.awaitLog(n.serves, startLimit)
	return time.Since(n.proc.begun)
}

// awaitBrokers waits until so many brokers are registered and answer.
func (c *cluster) awaitBrokers(n int) {
	c.t.Helper()
	await(c.t, startLimit, "brokers to register", func() (bool, string) {
		brokers, _, err := c.admin.Brokers(c.t.Context())
		if err != nil {
			return false, err.Error()
		}
		up := 0
		for _, b := range brokers {
			if b.Reachable {
				up++
			}
		}
		return up == n, fmt.Sprintf("%d of %d are there", up, n)
	})
}

// setQueues creates a topic with so many queues in total, or changes it, and
// waits until the name server says so.
func (c *cluster) setQueues(topic string, queues int32, create bool) {
	c.t.Helper()
	put := c.admin.AlterTopic
	if create {
		put = c.admin.CreateTopic
	}
	if _, err := put(c.t.Context(), topic, admin.TopicChange{Queues: &queues}); err != nil {
		c.t.Fatalf("set the queues of %s to %d: %v", topic, queues, err)
	}
	await(c.t, startLimit, "the route of "+topic, func() (bool, string) {
		cl, err := c.admin.Cluster(c.t.Context())
		if err != nil {
			return false, err.Error()
		}
		var n int32
		for _, h := range cl.Topic(topic).Hosts {
			n += h.Config.ReadQueues
		}
		return n == queues, fmt.Sprintf("%d queues", n)
	})
}

// awaitSettled waits until exactly these members have a session, the group is
// settled with all queues of the commits owned, and returns how long it took.
func (c *cluster) awaitSettled(group string, queues int, members ...string) time.Duration {
	c.t.Helper()
	slices.Sort(members)
	return await(c.t, settleLimit, fmt.Sprintf("group %s to settle on %v", group, members), func() (bool, string) {
		g, failures, err := c.admin.DescribeGroup(c.t.Context(), group)
		if err != nil {
			return false, err.Error()
		}
		if len(failures) > 0 {
			return false, fmt.Sprint(failures)
		}
		var have []string
		for _, m := range g.Members {
			have = append(have, m.ClientID)
		}
		counts := make(map[string]int)
		for _, q := range g.Queues {
			if q.Topic == topic {
				counts[q.Owner]++
			}
		}
		gt, _ := g.Topic(topic)
		state := fmt.Sprintf("members %v, state %s of the topic %s, owners %v", have, g.State, gt.State, counts)
		if !slices.Equal(have, members) || g.State != admin.Settled {
			return false, state
		}
		total, least, most := 0, queues, 0
		for _, m := range members {
			total, least, most = total+counts[m], min(least, counts[m]), max(most, counts[m])
		}
		return total == queues && most-least <= 1, state
	})
}

// lag returns how many messages of a topic the group has still to confirm, -1 if
// that is not known of all queues.
func (c *cluster) lag(group, topic string) (int64, string) {
	g, failures, err := c.admin.DescribeGroup(c.t.Context(), group)
	if err != nil {
		return -1, err.Error()
	}
	if len(failures) > 0 {
		return -1, fmt.Sprint(failures)
	}
	var sum int64
	for _, q := range g.Queues {
		if q.Topic != topic {
			continue
		}
		if q.Lag == nil {
			return -1, fmt.Sprintf("queue %v has no lag", q.QueueName)
		}
		sum += *q.Lag
	}
	return sum, fmt.Sprintf("lag %d", sum)
}

// stopAll ends everything with SIGTERM: members first.
func (c *cluster) stopAll(members ...*proc) {
	c.t.Helper()
	begun := time.Now()
	for _, m := range members {
		m.signal(syscall.SIGTERM)
	}
	for _, m := range members {
		m.end(begun, stopLimit)
	}
	var took []string
	for _, n := range c.nodes {
		took = append(took, fmt.Sprintf("%s %v", n.name, n.proc.stop(stopLimit).Round(time.Millisecond)))
	}
	took = append(took, fmt.Sprintf("%s %v", c.names.name, c.names.proc.stop(stopLimit).Round(time.Millisecond)))
	c.t.Logf("stopped by SIGTERM: %s", strings.Join(took, ", "))
}
