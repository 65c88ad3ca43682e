// Package batch reads and writes the record in which messages travel and rest:
// the same bytes are sent by the producer, written to the log, read and handed
// to consumers. A client in any language can write one from this page.
//
// # Layout
//
// All integers are little-endian. "B" marks the fields that the broker fills in;
// a producer leaves them zero.
//
//	 at size
//	  0    3  magic "TCB"
//	  3    1  format version, 1
//	  4    4  length of the whole batch in bytes, this header included
//	  8    8  base offset: the offset of the first message                  B
//	 16    8  store time, Unix milliseconds                                 B
//	 24    8  origin: id under which the batch waited to become due, or 0   B
//	 32    4  segment of the log                                            B
//	 36    4  position in the segment                                       B
//	 40    4  group: position at which the batches written together begin   B
//	 44    4  header checksum, over bytes 8-43 and 48-51                    B
//	 48    4  body checksum, over bytes 0-7 and 52 to the end
//	 52    1  flags: 1 = more than 64 tags, none listed; 2 = more than 1024 keys, none listed
//	 53    1  compression of the body: 0 none, 1 s2 (block format), 2 zstd
//	 54    1  length of the topic name, 1-255
//	 55    1  number of tag hashes, 0-64
//	 56    4  queue id, 0 to 2^31-1
//	 60    4  number of messages, 1-65536
//	 64    8  producer id, 0 = repeats are not to be detected
//	 72    8  base sequence: the producer's number of the first message
//	 80    8  due time, Unix milliseconds, 0 = at once
//	 88    4  producer epoch
//	 92    4  size of the body before compression, at most 64 MiB
//	 96    2  number of key hashes, 0-1024
//	 98    2  reserved, 0
//	100       tag hashes, 8 bytes each; key hashes, 8 bytes each; topic; body
//
// Checksums are CRC32C (Castagnoli). The producer computes the body checksum, so
// that damage anywhere on the way is found; the broker checks it once, stamps its
// own fields and the header checksum, and never encodes again.
//
// The body, after decompression, is "number of messages" times:
//
//	uvarint  size of what follows
//	varint   born time, Unix milliseconds (zigzag)
//	uvarint  how often it was sent back before
//	uvarint  length of the tag; the tag
//	uvarint  number of keys; for each: uvarint length, the key
//	uvarint  number of properties; for each: uvarint length, name, uvarint length, value
//	         the rest is the value
//
// (uvarint and varint as in Protocol Buffers and encoding/binary.)
//
// The tag hashes are those of all different tags in the batch, in any order, so
// that a broker can pass over batches without a wanted tag; likewise the key
// hashes, by which the broker finds messages by key. Messages without tag or key
// add none. A hash is FNV-1a 64 over the UTF-8 bytes preceded by their number as
// 4 bytes big-endian, followed by the finaliser of splitmix64; see [Hash].
package batch
