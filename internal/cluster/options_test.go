package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestControllersAreChosenAsInKubeControllerManager(t *testing.T) {
	for args, want := range map[string][]string{
		"":                                     names(),
		"--controllers=*":                      names(),
		"--controllers=*,-eviction-webhook":    names()[1:],
		"--controllers=evacuation":             {evacuations},
		"--controllers=evacuation,-evacuation": {evacuations}, // the first word counts
		"--controllers=-evacuation":            nil,
		"--beside-kubevirt":                    {launcherWebhook, podDisruption, taintReplacement},
		"--beside-kubevirt --controllers=*,-taint-replacement": {launcherWebhook, podDisruption},
	} {
		o, err := Parse(strings.Fields(args), nil)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		var got []string
		for _, name := range names() {
			if o.runs(name) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", args, got, want)
		}
	}
}

func TestAWrongCommandLineIsSaidInOneLine(t *testing.T) {
	for _, args := range []string{
		"--controllers=*,evacuations", "--controllers=-nobody", "--log-format=xml", "--webhook-port=0",
		"--certificate-validity=1s", "--shutdown-delay=-1s", "--namespace=", "more", "--unknown",
	} {
		if _, err := Parse(strings.Fields(args), nil); err == nil || errors.Is(err, pflag.ErrHelp) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestEveryControllerIsRegistered(t *testing.T) {
	for _, name := range names() {
		if _, ok := (&Options{}).registered()[name]; !ok {
			t.Errorf("%s is not registered", name)
		}
	}
}

func TestKubeVirtsCRDsAreKnown(t *testing.T) {
	for name, c := range map[string]struct {
		meta metav1.ObjectMeta
		want bool
	}{
		"vmgrace's": {metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/part-of": "vmgrace"}}, false},
		"operator":  {metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/managed-by": "virt-operator"}}, true},
		"label":     {metav1.ObjectMeta{Labels: map[string]string{"kubevirt.io": ""}}, true},
		"strategy":  {metav1.ObjectMeta{Annotations: map[string]string{"kubevirt.io/install-strategy-version": "v1.7.0"}}, true},
	} {
		if got := kubeVirts(&metav1.PartialObjectMetadata{ObjectMeta: c.meta}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
