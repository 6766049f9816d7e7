package drain

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// busy refuses the first n requests, as an API server does whose storage is
// being initialized, and counts all of them.
func busy(t *testing.T, n int32, after string) (*rest.RESTClient, *atomic.Int32) {
	t.Helper()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if requests.Add(1) > n {
			_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}})
			return
		}
		err := apierrors.NewTooManyRequests("not now", 1)
		w.Header().Set("Retry-After", after)
		w.WriteHeader(http.StatusTooManyRequests)
		_ = json.NewEncoder(w).Encode(err.Status())
	}))
	t.Cleanup(server.Close)
	cfg := callConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}})
	if cfg.Timeout != callTimeout {
		t.Errorf("a call is bound by %v", cfg.Timeout)
	}
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, &requests
}

// client-go would retry the eviction ten times, with pauses.
func TestAnEvictionThatIsRefusedComesBackAtOnce(t *testing.T) {
	c, requests := busy(t, 1, "1")
	r := response(c.Post().AbsPath("/api/v1/namespaces/default/pods/a/eviction").Do(t.Context()).Error())
	if requests.Load() != 1 || r.Code != http.StatusTooManyRequests {
		t.Errorf("%d requests: %+v", requests.Load(), r)
	}
}

func TestAnyOtherRequestThatIsRefusedForNowIsAskedAgain(t *testing.T) {
	c, requests := busy(t, 2, "0")
	if err := c.Get().AbsPath("/api/v1/pods").Do(t.Context()).Error(); err != nil || requests.Load() != 3 {
		t.Errorf("%d requests: %v", requests.Load(), err)
	}
}

// complete returns what a shell gets, with the answers of an API server.
func complete(t *testing.T, server *httptest.Server, args ...string) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["here"], cfg.AuthInfos["me"] = &clientcmdapi.Cluster{Server: server.URL}, &clientcmdapi.AuthInfo{Token: "x"}
	cfg.Contexts["mine"], cfg.CurrentContext = &clientcmdapi.Context{Cluster: "here"}, "mine"
	if err := clientcmd.WriteToFile(*cfg, config); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := NewCommand("kubectl vmdrain", "1.0", Output{&out, io.Discard})
	cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd, "--kubeconfig=" + config}, args...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Errorf("%q: %v", args, err)
	}
	return out.String()
}

func TestCompletion(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes" {
			t.Errorf("a request for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
		for _, n := range []string{"worker-2", "worker-1", "master"} {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: n}})
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	for args, want := range map[string]string{
		"":                        "master worker-1 worker-2 :4",
		"wor":                     "worker-1 worker-2 :4",
		"worker-1 wor":            "worker-2 :4",
		"--timeout 1h --force wo": "worker-1 worker-2 :4",
		"--dry-run wo":            "worker-1 worker-2 :4", // its value comes with =
		"--dry-run=":              "client none server :4",
		"--dry-run=s":             "server :4",
		"-o ":                     "json :4",
		"--context ":              "mine :4",
		"--timeout ":              ":4",
		"--kubeconfig ":           ":0",
		"--uncordon":              "--uncordon-on-cancel :4",
		"--no-such=":              ":4",
		"worker-2 worker-1 wor":   ":4",
		"worker-1 -- ":            "master worker-2 :4",
		"--no-such wo":            ":4",
	} {
		var got []string
		for line := range strings.Lines(complete(t, server, strings.Split(args, " ")...)) {
			first, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, first)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	if got := complete(t, server, "--disable-ev"); got != "--disable-eviction\tdelete pods instead of evicting them: passes by disruption\n:4\n" {
		t.Errorf("%q", got)
	}
	server.Close() // without an API server there are no completions and no error
	if got := complete(t, server, ""); got != ":4\n" {
		t.Errorf("%q", got)
	}
}

func TestCompletionDoesNotWaitForASilentAPIServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	begun := time.Now()
	if got := complete(t, server, ""); got != ":4\n" || time.Since(begun) > completionTimeout+time.Second {
		t.Errorf("%q after %v", got, time.Since(begun))
	}
}
