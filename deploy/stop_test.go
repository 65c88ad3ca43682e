package deploy

import (
	"strconv"
	"testing"
	"time"
)

// A stop that is cut short hands messages out twice: a consumer drains for up to
// 5 s and then says goodbye, a broker ends its streams and syncs.
func TestEveryStopLeavesTimeToDrain(t *testing.T) {
	const atLeast = 15 * time.Second
	check := func(where, program string, grace time.Duration) {
		if (program == "consumer" || program == "broker") && grace < atLeast {
			t.Errorf("%s: a %s is killed after %v, want at least %v", where, program, grace, atLeast)
		}
	}
	for _, s := range project(t).Services {
		if !ownImage(s) {
			continue
		}
		grace := 10 * time.Second // docker's default
		if s.StopGracePeriod != nil {
			grace = time.Duration(*s.StopGracePeriod)
		}
		check("compose.yaml: "+s.Name, s.Command[0], grace)
	}
	for _, w := range manifests(t).workloads {
		grace := 30 * time.Second // Kubernetes' default
		if s := w.pod.Spec.TerminationGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		check(w.String(), w.pod.Spec.Containers[0].Args[0], grace)
	}
	all := units(t)
	for _, inv := range systemdInvocations(t) {
		grace := 90 * time.Second // systemd's default
		if set := values(all[inv.file], "Service", "TimeoutStopSec"); len(set) == 1 {
			seconds, err := strconv.Atoi(set[0])
			if err != nil {
				t.Errorf("%s: TimeoutStopSec=%s is not in seconds", inv, set[0])
			}
			grace = time.Duration(seconds) * time.Second
		}
		check(inv.String(), inv.argv[0], grace)
	}
}
