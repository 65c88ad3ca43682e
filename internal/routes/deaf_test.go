package routes

import (
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// deafServer answers each watch once and never again, or not at all while it is mute.
type deafServer struct {
	tacitv1.NameServerServiceServer
	opened chan struct{}
	mute   atomic.Bool
}

func (d *deafServer) WatchRoutes(m *tacitv1.WatchRoutesRequest, s grpc.ServerStreamingServer[tacitv1.WatchRoutesResponse]) error {
	d.opened <- struct{}{}
	if d.mute.Load() {
		<-s.Context().Done()
		return s.Context().Err()
	}
	out := &tacitv1.WatchRoutesResponse{Full: true}
	for _, name := range m.GetTopics() {
		out.Routes = append(out.Routes, &tacitv1.TopicRoute{Topic: name})
	}
	if err := s.Send(out); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func serveDeaf(t *testing.T, lis *bufconn.Listener, d *deafServer) (stop func()) {
	srv := grpc.NewServer()
	d.NameServerServiceServer = &tacitv1.UnimplementedNameServerServiceServer{}
	tacitv1.RegisterNameServerServiceServer(srv, d)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }() // ended by stop
	return func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}
