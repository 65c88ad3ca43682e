package report

import (
	"math"
	"strconv"
)

// value writes a measure with its unit, in at most seven columns or so.
func (u unit) value(v float64) string {
	switch u {
	case millis:
		return span(v)
	case octets:
		return size(v)
	case rate:
		return size(v) + "/s"
	default:
		return whole(v)
	}
}

// span is a duration in milliseconds for people.
func span(ms float64) string {
	s := ms / 1000
	switch {
	case ms == 0:
		return "0 s"
	case ms < 1:
		return fixed(ms, 2) + " ms"
	case ms < 9.95:
		return fixed(ms, 1) + " ms"
	case ms < 999.5:
		return fixed(ms, 0) + " ms"
	case s < 9.995:
		return fixed(s, 2) + " s"
	case s < 99.95:
		return fixed(s, 1) + " s"
	case s < 99999.5:
		return fixed(s, 0) + " s"
	default:
		return fixed(s/3600, 0) + " h"
	}
}

// size is a number of bytes for people.
func size(b float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for b >= 999.5 && i < len(units)-1 {
		b /= 1000
		i++
	}
	digits := 0
	if i > 0 && b < 99.5 {
		digits = 1
	}
	return fixed(b, digits) + " " + units[i]
}

// whole is a count, or the middle of two.
func whole(v float64) string {
	if v == math.Trunc(v) {
		return fixed(v, 0)
	}
	return fixed(v, 1)
}

func fixed(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
