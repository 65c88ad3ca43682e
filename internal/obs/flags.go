package obs

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tacitmq/tacit/internal/routes"
)

// FlagError is a value that a flag does not take, wherever it was given.
type FlagError struct {
	// Where names the flag as it was given: "--rate", "TACIT_RATE" or "file.yaml:3: rate".
	Where string
	Value string
	// Limit is what the value must be: "must be 1 to 20".
	Limit error
}

func (e *FlagError) Error() string { return fmt.Sprintf("%s %q: %v", e.Where, e.Value, e.Limit) }

// Unwrap gives the limit.
func (e *FlagError) Unwrap() error { return e.Limit }

// set gives a flag a value and says in plain words what it must be if it does
// not take it.
func set(f *pflag.Flag, where, value string) error {
	if err := f.Value.Set(value); err != nil {
		return &FlagError{Where: where, Value: value, Limit: limit(f, err)}
	}
	return nil
}

// flagError is what is said of an error of the command line.
func flagError(cmd *cobra.Command, err error) error {
	if rest := cmd.Flags().Args(); !cmd.Runnable() && len(rest) > 0 {
		return unknownCommand(cmd, rest[0]) // of which the flag would be
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := bad.GetFlag()
		err = &FlagError{Where: "--" + f.Name, Value: bad.GetValue(), Limit: limit(f, bad.Unwrap())}
	}
	return &UsageError{Err: err}
}

// Checked tells whether a flag is one of this package, which say in plain words
// what they take.
func Checked(v pflag.Value) bool {
	_, ok := v.(interface{ checked() })
	return ok
}

// limit is the error of a flag's own check. Those of pflag's own types speak of
// Go functions and are replaced.
func limit(f *pflag.Flag, err error) error {
	if Checked(f.Value) {
		return err
	}
	switch f.Value.Type() {
	case "bool":
		return errors.New("must be true or false")
	case "int", "int32", "int64":
		return errors.New("must be a whole number")
	case "duration":
		return errDuration
	case "stringSlice":
		return errors.New("must be a list, separated by commas")
	}
	return err
}

var errDuration = errors.New("must be a duration, such as 10s or 1m30s")

// value is a flag of any type with a check of its own.
type value[T any] struct {
	at    *T
	typ   string
	show  func(T) string
	parse func(string) (T, error)
}

func (v *value[T]) String() string {
	if v.at == nil { // pflag makes one to learn what a zero value looks like
		return ""
	}
	return v.show(*v.at)
}

func (v *value[T]) Type() string { return v.typ }

func (v *value[T]) checked() {}

func (v *value[T]) Set(text string) error {
	x, err := v.parse(text)
	if err == nil {
		*v.at = x
	}
	return err
}

// Int is a whole number from low to high.
func Int[N ~int | ~int32 | ~int64](at *N, low, high N) pflag.Value {
	return &value[N]{
		at: at, typ: "number",
		show: func(n N) string { return strconv.FormatInt(int64(n), 10) },
		parse: func(text string) (N, error) {
			n, err := strconv.ParseInt(text, 10, 64)
			switch {
			case errors.Is(err, strconv.ErrRange):
			case err != nil:
				return 0, fmt.Errorf("must be a whole number%s", span(", ", low, high))
			case N(n) >= low && N(n) <= high && int64(N(n)) == n:
				return N(n), nil
			}
			if !strings.HasPrefix(text, "-") && (err != nil || n > int64(high)) { // too many for an end that else is not worth a word
				return 0, fmt.Errorf("must be %d to %d", low, high)
			}
			return 0, fmt.Errorf("must be %s", span("", low, high))
		},
	}
}

// span is the text of a range behind a prefix. An end at the type's limit is none.
func span[N ~int | ~int32 | ~int64](prefix string, low, high N) string {
	open := int64(high) == math.MaxInt32 || int64(high) == math.MaxInt64
	switch {
	case !open:
		return fmt.Sprintf("%s%d to %d", prefix, low, high)
	case int64(low) > math.MinInt32:
		return fmt.Sprintf("%s%d or more", prefix, low)
	}
	return ""
}

// Float is a number from low to high, which may be infinite.
func Float(at *float64, low, high float64) pflag.Value {
	limit := fmt.Errorf("must be a number, %v to %v", low, high)
	if math.IsInf(high, 1) {
		limit = fmt.Errorf("must be a number, %v or more", low)
	}
	return &value[float64]{
		at: at, typ: "number",
		show: func(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) },
		parse: func(text string) (float64, error) {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || n < low || n > high || math.IsNaN(n) || math.IsInf(n, 0) {
				return 0, limit
			}
			return n, nil
		},
	}
}

// Forever is the high end of a [Duration] without one.
const Forever = time.Duration(math.MaxInt64)

// Duration is a time from low to high.
func Duration(at *time.Duration, low, high time.Duration) pflag.Value {
	return &value[time.Duration]{
		at: at, typ: "duration",
		show: brief, // 0 as pflag's help leaves it out
		parse: func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			switch {
			case err != nil:
				return 0, errDuration
			case d < low || d > high:
				return 0, fmt.Errorf("must be %s", durations(low, high))
			}
			return d, nil
		},
	}
}

func durations(low, high time.Duration) string {
	if high == Forever {
		return brief(low) + " or longer"
	}
	return brief(low) + " to " + brief(high)
}

// brief writes 1h for 1h0m0s.
func brief(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	s := d.String()
	if d >= time.Minute {
		s = strings.TrimSuffix(s, "0s")
	}
	if d >= time.Hour {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Size is a number of bytes from low to high, which may be written as 64MiB.
func Size[N ~int | ~int64](at *N, low, high N) pflag.Value {
	limit := fmt.Errorf("must be a size such as 64MiB, %s to %s", SizeText(low), SizeText(high))
	if int64(high) == math.MaxInt64 {
		limit = fmt.Errorf("must be a size such as 64MiB, %s or more", SizeText(low))
	}
	return &value[N]{
		at: at, typ: "size", show: SizeText[N],
		parse: func(text string) (N, error) {
			n, err := humanize.ParseBytes(text)
			if err != nil || n > math.MaxInt64 || n < uint64(low) || n > uint64(high) { //nolint:gosec // never negative
				return 0, limit
			}
			return N(n), nil
		},
	}
}

// SizeText writes a number of bytes as the help of [Size] does: 5.0MiB.
func SizeText[N ~int | ~int64](n N) string {
	if n == 0 {
		return "0"
	}
	return strings.ReplaceAll(humanize.IBytes(uint64(n)), " ", "") //nolint:gosec // never negative
}

// choice is a flag that takes one of a few words.
type choice[T any] struct {
	value[T]
	words []string
}

func (c *choice[T]) choices() []string { return c.words }

// Choice is one of a few words. The shell completes them.
func Choice(at *string, words ...string) pflag.Value {
	return ChoiceOf(at, func(s string) string { return s }, words...)
}

// ChoiceOf is one of a few values, by their names. The shell completes them.
func ChoiceOf[T any](at *T, name func(T) string, values ...T) pflag.Value {
	c := &choice[T]{}
	for _, v := range values {
		c.words = append(c.words, name(v))
	}
	c.value = value[T]{
		at: at, typ: "word", show: name,
		parse: func(text string) (v T, err error) {
			if i := slices.Index(c.words, text); i >= 0 {
				return values[i], nil
			}
			return v, fmt.Errorf("must be %s", OneOf(c.words))
		},
	}
	return c
}

// OneOf lists words as "a, b or c".
func OneOf(words []string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " or " + words[n]
	}
	return strings.Join(words, "")
}

// Listen is an address to listen on: host:port or :port.
func Listen(at *string) pflag.Value {
	return address(at, false, "must be host:port or :port, with a port of 0 to 65535")
}

// MaybeListen is [Listen], or empty.
func MaybeListen(at *string) pflag.Value {
	return address(at, true, "must be host:port or :port, with a port of 0 to 65535, or empty")
}

func address(at *string, empty bool, limit string) pflag.Value {
	return &value[string]{
		at: at, typ: "address", show: func(s string) string { return s },
		parse: func(text string) (string, error) {
			if text == "" && empty {
				return "", nil
			}
			_, port, err := net.SplitHostPort(text)
			if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || strconv.FormatUint(n, 10) != port {
				return "", errors.New(limit)
			}
			return text, nil
		},
	}
}

// Dial is an address to connect to, host:port, or empty.
func Dial(at *string) pflag.Value {
	return &value[string]{
		at: at, typ: "host:port", show: func(s string) string { return s },
		parse: func(text string) (string, error) {
			host, port, err := net.SplitHostPort(text)
			n, e := strconv.ParseUint(port, 10, 16)
			if text != "" && (err != nil || e != nil || host == "" || n == 0) {
				return "", errors.New("must be host:port, with a port of 1 to 65535")
			}
			return text, nil
		},
	}
}

// Text is a text that check accepts.
func Text(at *string, check func(string) error) pflag.Value {
	return &value[string]{
		at: at, typ: "text", show: func(s string) string { return s },
		parse: func(text string) (string, error) { return text, check(text) },
	}
}

// list is a flag of several values, each flag adding to those before it.
type list struct {
	at      *[]string
	typ     string
	check   func([]string) error
	changed bool
}

// wordList is a list of words that the shell completes.
type wordList struct {
	list
	words []string
}

func (w *wordList) choices() []string { return w.words }

// Choices is a list of words, each one of a few: separated by commas or in flags
// of their own. The shell completes them.
func Choices(at *[]string, words ...string) pflag.Value {
	return &wordList{words: words, list: list{at: at, typ: "words", check: func(given []string) error {
		for _, w := range given {
			if !slices.Contains(words, w) {
				return fmt.Errorf("must be any of %s", strings.Join(words, ", "))
			}
		}
		return nil
	}}}
}

// NameServers says where the name servers are: host:port each, separated by
// commas or in flags of their own, or where a list of them is, file:PATH or a
// URL. With empty there may be none.
func NameServers(at *[]string, empty bool) pflag.Value {
	return &list{at: at, typ: "addresses", check: func(given []string) error {
		if len(given) == 0 && empty {
			return nil
		}
		if _, err := routes.ParseAll(given); err != nil {
			return errors.New("must be host:port of each name server, separated by commas, or file:PATH or a URL that lists them")
		}
		return nil
	}}
}

// Type is what help calls the values.
func (l *list) Type() string { return l.typ }

func (l *list) checked() {}

func (l *list) String() string {
	if l.at == nil {
		return ""
	}
	return strings.Join(*l.at, ",")
}

func (l *list) Set(text string) error {
	var given []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			given = append(given, part)
		}
	}
	if l.changed { // given again: more of them
		given = append(slices.Clone(*l.at), given...)
	}
	return l.Replace(given)
}

// Replace sets the whole list.
func (l *list) Replace(given []string) error {
	if err := l.check(given); err != nil {
		return err
	}
	*l.at, l.changed = given, true
	return nil
}

// Append adds one.
func (l *list) Append(one string) error { return l.Replace(append(slices.Clone(*l.at), one)) }

// GetSlice returns them.
func (l *list) GetSlice() []string { return *l.at }

// completeChoices lets the shell complete the words of every [Choice] of a
// command.
func completeChoices(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(interface{ choices() []string }); ok {
			if _, has := cmd.GetFlagCompletionFunc(f.Name); !has {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(c.choices(), cobra.ShellCompDirectiveNoFileComp)) // it has none
			}
		}
	})
}
