package batch

import "encoding/binary"

// Hash returns the hash of a tag or key as it stands in a batch: FNV-1a 64 over
// the length (4 bytes, little-endian) and the bytes of s, then the finaliser of
// splitmix64.
func Hash[T string | []byte](s T) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(s)))
	for _, c := range n {
		h = (h ^ uint64(c)) * prime
	}
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * prime
	}
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}
