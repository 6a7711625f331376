// A small RateLimiter over grpc-go, for servers.py, which says what it does.
// Arguments: [CERT_FILE KEY_FILE].
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "sluice.test/interop/sluicev1"
)

const special = "100% of \"größe\":\n\tnone \u2192 %41"

type bucket struct{ limit, key string }

type limiter struct {
	pb.UnimplementedRateLimiterServer
	mu       sync.Mutex
	left     map[bucket]int64
	receipts map[string]*pb.Charge // not refunded: the charge; refunded: nil
	executed int64
}

// Under the lock.
func (l *limiter) remaining(b bucket) int64 {
	if left, exists := l.left[b]; exists {
		return left
	}
	return 10
}

func (l *limiter) noteCancelled(limit string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := bucket{"cancelled", limit}
	l.left[b] = l.remaining(b) + 1
}

func (l *limiter) decide(request *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	charge := request.Charges[0]
	if charge.Limit == "missing" {
		return nil, status.Error(codes.NotFound, special)
	}
	permits := int64(1)
	if charge.Permits != nil {
		permits = int64(*charge.Permits)
	}
	b := bucket{charge.Limit, charge.Key}
	left := l.remaining(b)
	answer := &pb.AcquireResponse{Granted: left >= permits || charge.Limit == "load", Source: pb.Source_SOURCE_STORE}
	if charge.Limit == "load" {
		l.executed++
	} else if answer.Granted {
		left -= permits
		l.left[b] = left
	} else {
		answer.RetryAfter = durationpb.New(250 * time.Millisecond)
	}
	if request.WantReceipt {
		answer.Receipt = []byte(strings.Repeat("\x00\xff", 500) + fmt.Sprint(len(l.receipts)))
		l.receipts[string(answer.Receipt)] = charge
	}
	answer.Charges = []*pb.ChargeStatus{{Remaining: left, Capacity: 10}}
	return answer, nil
}

func (l *limiter) Acquire(ctx context.Context, request *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	var answerAt <-chan time.Time
	switch {
	case request.Charges[0].Limit == "hang": // never
	case request.Charges[0].Limit == "load":
		answerAt = time.After(20 * time.Millisecond)
	case request.Hold:
		answerAt = time.After(request.MaxWait.AsDuration())
	default:
		return l.decide(request)
	}
	select {
	case <-answerAt:
		return l.decide(request)
	case <-ctx.Done():
		l.noteCancelled(request.Charges[0].Limit)
		return nil, ctx.Err()
	}
}

func (l *limiter) AcquireBatch(_ context.Context, batch *pb.AcquireBatchRequest) (*pb.AcquireBatchResponse, error) {
	answer := &pb.AcquireBatchResponse{}
	for _, one := range batch.Acquisitions {
		result := &pb.AcquireResult{}
		if decision, err := l.decide(one); err != nil {
			result.Outcome = &pb.AcquireResult_Error{Error: &pb.Error{Code: int32(status.Code(err)), Message: status.Convert(err).Message()}}
		} else {
			result.Outcome = &pb.AcquireResult_Response{Response: decision}
		}
		answer.Results = append(answer.Results, result)
	}
	return answer, nil
}

func (l *limiter) AcquireStream(stream pb.RateLimiter_AcquireStreamServer) error {
	for {
		batch, err := stream.Recv()
		if err != nil {
			return nil
		}
		answer, _ := l.AcquireBatch(stream.Context(), batch)
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (l *limiter) query(buckets []*pb.QueryRequest_Bucket) *pb.QueryResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := &pb.QueryResponse{}
	for _, b := range buckets {
		answer.Buckets = append(answer.Buckets, &pb.BucketStatus{
			Limit: b.Limit, Key: b.Key, Remaining: l.remaining(bucket{b.Limit, b.Key}), Capacity: 10})
	}
	return answer
}

func (l *limiter) Query(_ context.Context, request *pb.QueryRequest) (*pb.QueryResponse, error) {
	return l.query(request.Buckets), nil
}

func (l *limiter) Watch(request *pb.WatchRequest, stream pb.RateLimiter_WatchServer) error {
	for last := int64(-1); ; {
		answer := l.query(request.Buckets)
		if now := answer.Buckets[0].Remaining; now != last {
			last = now
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		if request.Buckets[0].Limit == "breaks" {
			return status.Error(codes.Aborted, special)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-stream.Context().Done():
			l.noteCancelled(request.Buckets[0].Limit)
			return stream.Context().Err()
		}
	}
}

func (l *limiter) Refund(_ context.Context, request *pb.RefundRequest) (*pb.RefundResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	charge, known := l.receipts[string(request.Receipt)]
	if !known {
		return nil, status.Error(codes.InvalidArgument, special)
	}
	if charge == nil {
		return &pb.RefundResponse{Outcome: pb.RefundOutcome_REFUND_OUTCOME_ALREADY_REFUNDED}, nil
	}
	l.receipts[string(request.Receipt)] = nil
	l.left[bucket{charge.Limit, charge.Key}]++
	return &pb.RefundResponse{Outcome: pb.RefundOutcome_REFUND_OUTCOME_REFUNDED,
		Charges: []*pb.RefundedCharge{{Limit: charge.Limit, Key: charge.Key, Permits: 1}}}, nil
}

func main() {
	options := []grpc.ServerOption{}
	if len(os.Args) > 2 {
		creds, err := credentials.NewServerTLSFromFile(os.Args[1], os.Args[2])
		if err != nil {
			panic(err)
		}
		options = append(options, grpc.Creds(creds))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	service := &limiter{left: map[bucket]int64{}, receipts: map[string]*pb.Charge{}}
	server := grpc.NewServer(options...)
	pb.RegisterRateLimiterServer(server, service)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	stopped := make(chan struct{})
	go func() {
		<-stop
		server.GracefulStop()
		close(stopped)
	}()
	fmt.Printf("ready data=%s\n", listener.Addr())
	if err := server.Serve(listener); err != nil {
		panic(err)
	}
	<-stopped
	fmt.Printf("executed=%d\n", service.executed)
}
