//go:build !unix

package accept

import "go.uber.org/zap"

// limit says which limit a failure met, as far as that is known.
func limit(error) zap.Field { return zap.Skip() }
