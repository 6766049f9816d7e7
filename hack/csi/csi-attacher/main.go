// Command csi-attacher runs the controller of the external-attacher for a driver:
// csi-attacher SOCKET NAME KUBECONFIG. It is what the external-attacher's own program
// runs, without metrics, leader election and feature gates: those have Go compile an
// API server, for minutes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kubernetes-csi/external-attacher/v4/pkg/attacher"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/controller"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "csi-attacher:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: csi-attacher SOCKET NAME KUBECONFIG")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	driver, err := grpc.NewClient("unix:"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = driver.Close() }() // it ends with the process
	config, err := clientcmd.BuildConfigFromFlags("", args[2])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	volumes, nodes, attachments := factory.Core().V1().PersistentVolumes(), factory.Storage().V1().CSINodes(), factory.Storage().V1().VolumeAttachments()
	timeout, name := 15*time.Second, args[1]
	handler := controller.NewCSIHandler(client, name, attacher.NewAttacher(driver), attacher.NewVolumeLister(driver, 0),
		volumes.Lister(), nodes.Lister(), attachments.Lister(), &timeout, false, false, translation.New(), "")
	retries := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute)
	}
	c := controller.NewCSIAttachController(klog.Background(), client, name, handler, attachments, volumes, retries(), retries(), false, time.Minute)
	factory.Start(ctx.Done())
	c.Run(ctx, 10, nil)
	return nil
}
