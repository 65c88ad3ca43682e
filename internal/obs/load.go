package obs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

// EnvPrefix begins the environment variable of every flag: --broker-expiry is
// TACIT_BROKER_EXPIRY.
const EnvPrefix = "TACIT_"

// configFlag names the flag that names the file. Commands without it have no file.
const configFlag = "config"

// Load fills in the flags of cmd that were not given on the command line: from
// the environment, else from the file that --config or TACIT_CONFIG names, else
// they keep their default. An empty variable counts as not set.
//
// The file is YAML: one map from flag names, without dashes before them, to
// values; lists for flags that may be repeated. A key that is no flag of cmd is
// an error that names it, and so is a value that the flag does not take. All
// errors are [UsageError]s.
func Load(cmd *cobra.Command, env func(string) (string, bool)) error {
	flags := cmd.Flags()
	given := func(f *pflag.Flag) bool { return f.Changed }
	var errs []error

	fromEnv := make(map[string]bool)
	flags.VisitAll(func(f *pflag.Flag) {
		if given(f) || !settable(f) {
			return
		}
		name := EnvName(f.Name)
		v, ok := env(name)
		if !ok || v == "" { // set to nothing is what a template with no value makes of it
			return
		}
		if err := set(f, name, v); err != nil {
			errs = append(errs, err)
			return
		}
		fromEnv[f.Name] = true
	})

	if f := flags.Lookup(configFlag); f != nil && f.Value.String() != "" {
		skip := func(f *pflag.Flag) bool { return given(f) || fromEnv[f.Name] }
		errs = append(errs, loadFile(f.Value.String(), flags, skip)...)
	}
	if len(errs) > 0 {
		return &UsageError{Err: errors.Join(errs...)}
	}
	return nil
}

// EnvName is the environment variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func settable(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "version" }

// loadFile sets the flags that the file names, but for those to skip.
func loadFile(name string, flags *pflag.FlagSet, skip func(*pflag.Flag) bool) (errs []error) {
	text, err := readFile(name)
	if err != nil {
		return []error{fmt.Errorf("read settings: %w", err)}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return []error{fmt.Errorf("read settings %s: %w", name, err)}
	}
	if len(doc.Content) == 0 { // empty, or comments alone
		return nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return []error{fmt.Errorf("%s:%d: settings must be a map of names to values", name, root.Line)}
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		f := flags.Lookup(key.Value)
		switch {
		case f == nil || !settable(f) || f.Name == configFlag:
			errs = append(errs, fmt.Errorf("%s:%d: unknown setting %q", name, key.Line, key.Value))
		case seen[f.Name]:
			errs = append(errs, fmt.Errorf("%s:%d: setting %q is there twice", name, key.Line, key.Value))
		case !skip(f):
			if err := setNode(f, fmt.Sprintf("%s:%d: %s", name, value.Line, key.Value), value); err != nil {
				errs = append(errs, err)
			}
		}
		seen[key.Value] = true
	}
	return errs
}

// maxFile bounds a file of settings, so that a wrong one is not read for ever.
const maxFile = 1 << 20

func readFile(name string) (text []byte, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if text, err = io.ReadAll(io.LimitReader(f, maxFile+1)); err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: has more than %s", name, SizeText(maxFile))
	}
	return text, err
}

// setNode gives a flag the value of a YAML node.
func setNode(f *pflag.Flag, where string, n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	many, isMany := f.Value.(pflag.SliceValue)
	replace := func(values []string) error {
		if err := many.Replace(values); err != nil {
			return &FlagError{Where: where, Value: strings.Join(values, ","), Limit: limit(f, err)}
		}
		return nil
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return fmt.Errorf("%s: has no value", where)
	case n.Kind == yaml.ScalarNode && isMany:
		return replace([]string{n.Value})
	case n.Kind == yaml.ScalarNode:
		if f.Value.Type() == "bool" { // YAML's words, not just Go's
			var b bool
			if err := n.Decode(&b); err != nil {
				return set(f, where, n.Value)
			}
			return set(f, where, strconv.FormatBool(b))
		}
		return set(f, where, n.Value)
	case n.Kind == yaml.SequenceNode && isMany:
		if slices.ContainsFunc(n.Content, func(e *yaml.Node) bool { return e.Kind != yaml.ScalarNode }) {
			return fmt.Errorf("%s: must be a list of plain values", where)
		}
		var values []string
		for _, e := range n.Content {
			values = append(values, e.Value)
		}
		return replace(values)
	}
	return fmt.Errorf("%s: must be one plain value", where)
}
