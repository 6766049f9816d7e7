package cluster

import (
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/test/node"
)

// StartControllers starts a kube-controller-manager that runs these controllers
// and no others. It ends with the API, and keeps trying while the server is away.
func (a *API) StartControllers(names ...string) error {
	path, err := program("kube-controller-manager")
	if err != nil {
		return err
	}
	port, err := node.FreePort()
	if err != nil {
		return err
	}
	_, err = a.keeper.start(a.home.path("kube-controller-manager.log"), path, "--kubeconfig="+a.Kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--leader-elect=false", "--profiling=false",
		"--controllers="+strings.Join(names, ","))
	return err
}
