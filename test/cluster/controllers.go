package cluster

import (
	"strconv"
	"strings"

	"github.com/vmgrace/vmgrace/test/node"
)

// StartControllers starts a kube-controller-manager that runs only these controllers. It
// ends with the API, and retries while the server does not answer.
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
