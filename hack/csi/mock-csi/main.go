// Command mock-csi is a CSI driver that attaches and mounts nothing, for the
// external-attacher and for kubelet:
//
//	mock-csi SOCKET NAME DURATION [NODE PLUGINS]
//
// A volume whose handle contains "slow" is detached after that duration, one with
// "stuck" never. With the name of a node and the directory in which its kubelet
// looks for plugins it is that node's driver as well.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mock-csi:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 && len(args) != 5 {
		return errors.New("usage: mock-csi SOCKET NAME DURATION [NODE PLUGINS]")
	}
	slowly, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	d := &driver{socket: args[0], name: args[1], slowly: slowly}
	ended := make(chan error, 2)
	if len(args) == 5 {
		d.node = args[3]
		s := grpc.NewServer()
		registration.RegisterRegistrationServer(s, d)
		go func() { ended <- serve(s, filepath.Join(args[4], d.name+"-reg.sock")) }()
	}
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
	go func() { ended <- serve(s, d.socket) }()
	return <-ended
}

func serve(s *grpc.Server, socket string) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	return s.Serve(l)
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnsafeRegistrationServer

	socket, name, node string
	slowly             time.Duration
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}
