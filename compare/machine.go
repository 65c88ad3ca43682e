package compare

import (
	"bufio"
	"os"
	"runtime"
	"strings"
)

// ThisMachine describes the machine the program runs on, as far as it tells.
func ThisMachine() Machine {
	return Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: processor(), Cores: runtime.NumCPU(), Go: runtime.Version()}
}

// processor is the name that Linux has for the first core; empty elsewhere.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // read only
	s := bufio.NewScanner(f)
	for s.Scan() {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
