package deploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// bin is where TestMain lets the programs be built.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tacit-deploy")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	return m.Run()
}

var buildPrograms = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-o", bin+string(filepath.Separator), "./cmd/...")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build programs: %w\n%s", err, out)
	}
	return nil
})

// program returns a command that runs one of the programs without any settings
// but those given.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if err := buildPrograms(); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "TACIT_") })
	return cmd
}

// help returns what a program prints for args and --help: it has parsed all flags before that.
func help(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := program(t, name, append(slices.Clone(args), "--help")...).CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), nil
}

func TestProgramsTakeTheirFlagsAndVariables(t *testing.T) {
	for _, inv := range invocations(t) {
		args := slices.Clone(inv.argv[1:])
		for name, value := range inv.env {
			// A variable that no flag has would be ignored in silence; as a flag it is not.
			if flag, ok := strings.CutPrefix(name, "TACIT_"); ok {
				args = append(args, "--"+strings.ReplaceAll(strings.ToLower(flag), "_", "-")+"="+value)
			}
		}
		if _, err := help(t, inv.argv[0], args...); err != nil {
			t.Errorf("%s: %v", inv, err)
		}
	}
}

func TestHelpRefusesWhatIsNoFlag(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"--max-sessions=many"}} {
		if _, err := help(t, "broker", args...); err == nil {
			t.Errorf("broker %v --help succeeds, so the tests here prove nothing", args)
		}
	}
}

// For a mistyped command cobra prints the help of the one above.
func TestCommandsOfTheCLIExist(t *testing.T) {
	checked := 0
	for _, inv := range invocations(t) {
		if inv.argv[0] != "tacit" {
			continue
		}
		checked++
		text, err := help(t, "tacit", inv.argv[1:]...)
		if err != nil {
			t.Errorf("%s: %v", inv, err)
			continue
		}
		words := strings.Join(inv.argv[:3], " ")
		if !regexp.MustCompile(`(?m)^\s*` + words + `( |$)`).MatchString(text) {
			t.Errorf("%s: no command %q; its help is:\n%s", inv, words, text)
		}
	}
	if checked == 0 {
		t.Error("no file uses the CLI")
	}
}

func TestPortsAreTheProgramsDefaults(t *testing.T) {
	for name, want := range ports() {
		for flag, port := range map[string]string{"listen": want.listen, "http": want.http} {
			if port == "" || name == "consumer" { // which has none unless told so: several on one machine are usual
				continue
			}
			text, err := help(t, name)
			if err != nil {
				t.Fatal(err)
			}
			line := regexp.MustCompile(`(?m)^\s+--` + flag + ` .*$`).FindString(text)
			if !strings.Contains(line, ":"+port+`"`) && !strings.Contains(line, ":"+port+")") {
				t.Errorf("%s: --%s has another default than port %s: %q", name, flag, port, line)
			}
		}
	}
}
