// Package promreg registers the metrics of clients of which a process may have
// several.
package promreg

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers c, or returns what another client of the process registered
// before. A failure is added to errs. Without a registry nothing is registered.
func Register[C prometheus.Collector](reg prometheus.Registerer, c C, errs *[]error) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if err == nil {
		return c
	}
	if dup, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if present, ok := dup.ExistingCollector.(C); ok {
			return present
		}
	}
	*errs = append(*errs, fmt.Errorf("register metrics: %w", err))
	return c
}
