// Package program is what the programs of the end-to-end runs share: their
// flags, logger and trail, and their end.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

// Program is a program that runs.
type Program struct {
	NameServers []string
	Topic       string
	Trail       *trail.Writer
	Log         *zap.Logger
}

// Main runs a program with the arguments of its process until it is done or told
// to stop, and does not return. bind adds flags to those that all have.
func Main(name string, bind func(*flag.FlagSet), run func(context.Context, *Program) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, name, os.Args[1:], bind, run)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func start(ctx context.Context, name string, args []string, bind func(*flag.FlagSet), run func(context.Context, *Program) error) (err error) {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	servers := f.String("nameservers", "", "comma-separated `addresses`")
	topic := f.String("topic", "commits", "`topic`")
	out := f.String("trail", "", "`file` to write to")
	bind(f)
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("read flags: %w", err)
	}
	log, err := zap.NewDevelopment()
	if err != nil {
		return fmt.Errorf("make logger: %w", err)
	}
	w, err := trail.Create(*out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return run(ctx, &Program{NameServers: strings.Split(*servers, ","), Topic: *topic, Trail: w, Log: log})
}
