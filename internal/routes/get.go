package routes

import (
	"context"
	"fmt"
	"sync"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// Answer is what all name servers say together.
type Answer struct {
	// Topics that have hosts, sorted by name.
	Topics []route.Topic
	// Brokers are all registered ones, sorted by name, if no topic was named.
	Brokers []route.Broker
	// Warming: no name server that answered is ready, so that more may be known
	// in a moment.
	Warming bool
	// Failed has the error of each name server that gave no answer.
	Failed map[string]error
}

// Get asks every name server of source once for the named topics, or for all
// topics and brokers if none is named, and merges the answers. It is for tools;
// programs that stay use a [Watcher]. The error wraps [rpcerr.ErrUnreachable] if
// no name server answered.
func Get(ctx context.Context, source Source, d Dialer, topics ...string) (*Answer, error) {
	addresses, err := source.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	var (
		wg      sync.WaitGroup
		updates = make([]route.Update, len(addresses))
		errs    = make([]error, len(addresses))
	)
	for i, address := range addresses {
		wg.Go(func() { updates[i], errs[i] = ask(ctx, address, d, topics) })
	}
	wg.Wait()

	table := route.NewTable()
	out := &Answer{Warming: true, Failed: make(map[string]error)}
	failures := []error{rpcerr.ErrUnreachable}
	for i, address := range addresses {
		if errs[i] != nil {
			out.Failed[address] = errs[i]
			failures = append(failures, fmt.Errorf("name server %s: %w", address, errs[i]))
			continue
		}
		table.Apply(address, updates[i])
		out.Warming = out.Warming && updates[i].Warming
	}
	if len(out.Failed) == len(addresses) {
		return nil, joined(failures)
	}
	out.Topics, out.Brokers = table.Topics(), table.Brokers()
	return out, nil
}

func ask(ctx context.Context, address string, d Dialer, topics []string) (route.Update, error) {
	ctx, cancel := context.WithTimeout(ctx, FirstAnswer)
	defer cancel()
	conn, err := Dial(address, d)
	if err != nil {
		return route.Update{}, err
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed
	m, err := client(conn).GetRoutes(ctx, &tacitv1.GetRoutesRequest{Topics: topics})
	if err != nil {
		return route.Update{}, err
	}
	return wire.GetUpdate(m)
}
