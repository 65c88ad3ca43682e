package obs

import (
	"fmt"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger returns a logger that writes to w. format is "console" for people or
// "json" for machines; the level can be changed while the program runs.
func NewLogger(level, format string, w io.Writer) (*zap.Logger, zap.AtomicLevel, error) {
	parsed, err := zapcore.ParseLevel(level)
	if err != nil || parsed > zapcore.ErrorLevel {
		return nil, zap.AtomicLevel{}, Usage("log level %q: must be debug, info, warn or error", level)
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00")
	enc.EncodeDuration = zapcore.StringDurationEncoder
	var encoder zapcore.Encoder
	switch format {
	case "json":
		encoder = zapcore.NewJSONEncoder(enc)
	case "console":
		encoder = zapcore.NewConsoleEncoder(enc)
	default:
		return nil, zap.AtomicLevel{}, Usage("log format %q: must be console or json", format)
	}
	atomic := zap.NewAtomicLevelAt(parsed)
	sink := zapcore.Lock(zapcore.AddSync(w))
	return zap.New(zapcore.NewCore(encoder, sink, atomic), zap.ErrorOutput(sink)), atomic, nil
}

// printf is the logger that promhttp wants.
type printf struct{ log *zap.Logger }

func (p printf) Println(v ...any) {
	p.log.Warn("serve metrics", zap.String("text", fmt.Sprint(v...)))
}
