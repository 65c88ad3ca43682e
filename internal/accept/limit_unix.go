//go:build unix

package accept

import (
	"errors"
	"syscall"

	"go.uber.org/zap"
)

// limit says which limit a failure met, as far as that is known.
func limit(err error) zap.Field {
	var l syscall.Rlimit
	if !errors.Is(err, syscall.EMFILE) || syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return zap.Skip()
	}
	return zap.Uint64("open_files_limit", uint64(l.Cur)) //nolint:unconvert,nolintlint // signed on some systems
}
