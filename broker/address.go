package broker

import (
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strconv"

	"github.com/tacitmq/tacit/internal/vfs"
)

// advertised is the address that clients are told: the one that was set; or the
// host that is listened on; or, if that is every address, one of this host's,
// loopback only if there is no other.
func advertised(set string, listen net.Addr, own func() ([]net.Addr, error)) (string, error) {
	if set != "" {
		return set, nil
	}
	tcp, ok := listen.(*net.TCPAddr)
	if !ok {
		return listen.String(), nil
	}
	port := strconv.Itoa(tcp.Port)
	if !tcp.IP.IsUnspecified() && tcp.IP != nil {
		return net.JoinHostPort(tcp.IP.String(), port), nil
	}
	addrs, err := own()
	if err != nil {
		return "", fmt.Errorf("look for an address to advertise (set one instead): %w", err)
	}
	best, score := net.IPv4(127, 0, 0, 1), 0
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if sc := reachability(n.IP); sc > score {
				best, score = n.IP, sc
			}
		}
	}
	return net.JoinHostPort(best.String(), port), nil
}

// reachability rates an address of this host by how likely others reach it.
// 172.17.0.0/16 is the bridge of container engines, which no other host reaches.
func reachability(ip net.IP) int {
	bridge := net.IPNet{IP: net.IPv4(172, 17, 0, 0), Mask: net.CIDRMask(16, 32)}
	switch {
	case ip.IsLoopback(), ip.IsUnspecified(), ip.IsMulticast():
		return 0
	case ip.IsLinkLocalUnicast():
		return 1
	case bridge.Contains(ip):
		return 2
	case ip.To4() == nil:
		return 3
	}
	return 4
}

// dirBytes is the size of all files of a directory.
func dirBytes(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // files come and go
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}

// freeBytes is the room on the disk of a directory, 0 if it cannot be told.
func freeBytes(dir string) int64 {
	n, err := vfs.OS{}.Free(dir)
	if err != nil {
		return 0
	}
	return n
}
