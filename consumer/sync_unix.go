//go:build unix

package consumer

import (
	"errors"
	"fmt"
	"os"
)

// syncDir makes renames in a directory last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory of offset file: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory of offset file: %w", err)
	}
	return nil
}
