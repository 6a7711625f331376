module sluice.test/interop/xds

go 1.24

require (
	github.com/envoyproxy/go-control-plane v0.14.0
	github.com/envoyproxy/go-control-plane/envoy v1.36.0
	github.com/envoyproxy/go-control-plane/ratelimit v0.1.1-0.20260629194254-5581fade6089
	google.golang.org/grpc v1.75.1
	google.golang.org/protobuf v1.36.10
)
