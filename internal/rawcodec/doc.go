// Package rawcodec is a gRPC codec that moves batches without copying them
// through protobuf.
//
// It reads and writes the very wire form of the messages of DataService, so
// either side may just as well use the generated protobuf messages. Broker and
// clients of this module send and receive the structs of this package on the
// Produce and Fetch streams instead, with SendMsg and RecvMsg; every other
// message goes through the ordinary protobuf codec.
//
// A server uses it with grpc.ForceServerCodecV2(rawcodec.New()), a client with
// grpc.ForceCodecV2(rawcodec.New()) as a call option or a default call option of
// the connection. The content subtype stays "proto".
//
// # Memory
//
// Sending: the bytes of ProduceRequest.Batch and of FetchResponse.Data reach the
// transport as they are. They must not change until the transport has written
// them: for a batch that is certain once its answer has come, for Data gRPC calls
// Free on the buffers. A stream that breaks may never do either; leave such
// memory to the garbage collector.
//
// Receiving: Batch and Batches lie in a pooled buffer, contiguous. Call Free
// when done with them and all that aliases them, or never: then the garbage
// collector has it.
package rawcodec
