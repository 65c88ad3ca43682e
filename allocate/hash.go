package allocate

// Hash is the 64-bit hash of the wire contract: what members and brokers must
// compute alike, in any language and version. Scores of strategies, the order
// of view brokers and the digests of views are made of it.
//
// It is FNV-1a 64 over an unambiguous byte layout, closed by the splitmix64
// finaliser, since FNV alone spreads short inputs badly over the high bits:
//
//	String, Bytes  the length in bytes as 4 bytes, big endian, then the bytes
//	               as they are (a Go string's UTF-8; nothing is validated or
//	               normalized)
//	Uint64         8 bytes, big endian
//	Sum64          z = the FNV-1a state;
//	               z = (z ^ z>>30) * 0xbf58476d1ce4e5b9;
//	               z = (z ^ z>>27) * 0x94d049bb133111eb;
//	               z ^ z>>31
//
// A Hash is a value: each method returns the state with more input, so a common
// beginning can be computed once and continued in several ways. Nothing
// allocates. Begin with [NewHash]; the zero Hash is not a valid state.
//
//	sum := allocate.NewHash().String(group).String(topic).Uint64(version).Sum64()
//
// It is no defence against chosen inputs.
type Hash uint64

const (
	fnvOffset64 = 0xcbf29ce484222325
	fnvPrime64  = 0x100000001b3
)

// NewHash returns the state of a hash without input: the FNV-1a 64 offset basis.
func NewHash() Hash { return fnvOffset64 }

// String returns h with s added: its length, then its bytes. Only the lower 32
// bits of the length count.
func (h Hash) String(s string) Hash {
	h = h.length(len(s))
	for i := range len(s) {
		h = (h ^ Hash(s[i])) * fnvPrime64
	}
	return h
}

// Bytes returns h with b added, in the layout of [Hash.String].
func (h Hash) Bytes(b []byte) Hash {
	h = h.length(len(b))
	for _, c := range b {
		h = (h ^ Hash(c)) * fnvPrime64
	}
	return h
}

// Uint64 returns h with v added. Signed values are added as their two's
// complement: Uint64(uint64(int64(v))).
func (h Hash) Uint64(v uint64) Hash {
	for shift := 56; shift >= 0; shift -= 8 {
		h = (h ^ Hash(byte(v>>shift))) * fnvPrime64
	}
	return h
}

// Sum64 returns the hash of the input so far and leaves h as it is.
func (h Hash) Sum64() uint64 { return mix64(uint64(h)) }

func (h Hash) length(n int) Hash {
	for shift := 24; shift >= 0; shift -= 8 {
		h = (h ^ Hash(byte(n>>shift))) * fnvPrime64
	}
	return h
}

// mix64 is the splitmix64 finaliser, a bijection.
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
