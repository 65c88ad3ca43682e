package rpcerr

import (
	"context"
	"fmt"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Report is told of every error that the table lacks, with the method that
// returned it, and of every panic of a handler. It must not block.
type Report func(ctx context.Context, method string, err error)

// ServerOptions installs the server interceptors. They turn errors of handlers
// into statuses, and a panic of a handler into INTERNAL instead of the end of
// the process. report may be nil.
func ServerOptions(report Report) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(UnaryServer(report)),
		grpc.ChainStreamInterceptor(StreamServer(report)),
	}
}

// DialOptions installs the client interceptors, which give sentinels back.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(UnaryClient()),
		grpc.WithChainStreamInterceptor(StreamClient()),
	}
}

// UnaryServer is the interceptor for unary calls.
func UnaryServer(report Report) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		err = guard(func() (err error) {
			resp, err = handler(ctx, req)
			return err
		})
		return resp, outgoing(ctx, info.FullMethod, err, report)
	}
}

// StreamServer is the interceptor for streams.
func StreamServer(report Report) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		err := guard(func() error { return handler(srv, ss) })
		return outgoing(ss.Context(), info.FullMethod, err, report)
	}
}

// guard runs f and returns a panic as an error: what one peer sends must not
// end the service for the others.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

func outgoing(ctx context.Context, method string, err error, report Report) error {
	if err == nil {
		return nil
	}
	st, known := Status(err)
	if !known && report != nil {
		report(ctx, method, err)
	}
	return st.Err()
}

// UnaryClient is the interceptor for unary calls.
func UnaryClient() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return FromError(invoker(ctx, method, req, reply, cc, opts...))
	}
}

// StreamClient is the interceptor for streams.
func StreamClient() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		cs, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, FromError(err)
		}
		return &clientStream{cs}, nil
	}
}

type clientStream struct{ grpc.ClientStream }

func (s *clientStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, FromError(err)
}

func (s *clientStream) CloseSend() error    { return FromError(s.ClientStream.CloseSend()) }
func (s *clientStream) SendMsg(m any) error { return FromError(s.ClientStream.SendMsg(m)) }
func (s *clientStream) RecvMsg(m any) error { return FromError(s.ClientStream.RecvMsg(m)) }
