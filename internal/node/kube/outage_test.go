//go:build !unit

package kube

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vmgrace/vmgrace/pkg/grace"
	"github.com/vmgrace/vmgrace/test/cluster"
)

func TestAnUnusableConfigurationIsSaidInOneLine(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	empty := filepath.Join(t.TempDir(), "empty")
	broken := filepath.Join(t.TempDir(), "broken")
	for file, text := range map[string]string{empty: "", broken: "{"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"", "/no/such/file", empty, broken} {
		err := New(Config{Kubeconfig: file, Node: "n"}).Open()
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "--kubeconfig") {
			t.Errorf("%q: %v", file, err)
		}
	}
	for _, name := range []string{"", "Node", "a b", "../x", strings.Repeat("n", 64), "-n"} {
		if err := New(Config{Kubeconfig: shared.Kubeconfig, Node: name}).Open(); err == nil || !strings.Contains(err.Error(), "--node-name") {
			t.Errorf("node name %q: %v", name, err)
		}
	}
}

const podLists = "GET /api/v1/pods?field"

type outage struct {
	*rig
	v     grace.VMI
	says  trouble
	lists int // before the outage
}

func TestEveryOutageIsOneLineAndEnds(t *testing.T) {
	all := map[string]*outage{}
	for name, c := range map[string]struct {
		fault http.HandlerFunc
		says  trouble
	}{
		"404 text":        {textPage(404), notServed},
		"404 JSON":        {bareStatus(404, "NotFound"), notServed},
		"403":             {bareStatus(403, "Forbidden"), forbidden},
		"401":             {bareStatus(401, "Unauthorized"), unauthorized},
		"500":             {bareStatus(500, "InternalError"), failing},
		"cut":             {hangUp, unreachable},
		"a page":          {says(200, "text/html", "<html>please log in</html>"), notAPIServer},
		"an empty object": {says(200, "application/json", "{}"), notAPIServer},
		"a Status":        {says(200, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}`), notAPIServer},
	} {
		r := newRig(t)
		v := r.makeVMI("vm", "", `{}`)
		all[name] = &outage{rig: r.watching(), v: v, says: c.says}
		r.sees("vm", v)
		all[name].lists = r.proxy.asked(podLists)
		r.proxy.breaks(c.fault)
	}
	// All outages at once, so that the test waits for the retries only once.
	for name, o := range all {
		o.eventually(func() bool { return !o.Up() }, "%s: not noticed", name)
		o.eventually(func() bool { return o.proxy.asked(podLists) > o.lists+2 }, "%s: nobody tries again", name)
		if got := o.VMI(o.name, "vm"); got != o.v {
			t.Errorf("%s: the VMI is now %+v", name, got)
		}
		o.wantFate("vm", o.v, grace.FateUnknown)
	}
	begin := time.Now()
	for _, o := range all {
		o.proxy.recover()
	}
	for name, o := range all {
		o.eventually(o.Up, "%s: the return is not noticed", name)
		warn, info := strings.Count(o.logged(), "level=WARN"), strings.Count(o.logged(), "level=INFO")
		if warn != 1 || info != 2 || !strings.Contains(o.logged(), string(o.says)) {
			t.Errorf("%s: want one line that says %q:\n%s", name, o.says, o.logged())
		}
		o.sees("vm", o.v)
	}
	t.Logf("the last return was noticed after %v", time.Since(begin))
}

func TestABusyServerIsWorthALineOnlyIfItStaysSo(t *testing.T) {
	var text strings.Builder
	now := grace.Mono(0)
	h := newHealth(slog.New(slog.NewTextHandler(&text, nil)), func() grace.Mono { return now }, pods())
	h.established("pods")
	refuse := func(n int) {
		for range n {
			h.failed("pods", "list", apierrors.NewTooManyRequests("storage is (re)initializing", 1))
			now = now.Add(time.Second)
		}
	}
	refuse(5)
	if h.isUp() {
		t.Error("a watch that is refused counts as up")
	}
	h.established("pods")
	refuse(9)
	if strings.Contains(text.String(), "WARN") {
		t.Errorf("9 s are worth no line:\n%s", text.String())
	}
	refuse(20)
	if strings.Count(text.String(), "WARN") != 1 {
		t.Errorf("30 s are worth one line:\n%s", text.String())
	}
}

func TestEmptyListsProveNothing(t *testing.T) {
	r := newRig(t)
	v := r.makeVMI("vm", "", `{}`)
	uid := r.makePod("launcher", podOnServer{vmi: "vm"})
	r.watching()
	r.sees("vm", v)
	r.pod("vm", any1)
	onlyLists := func(q *http.Request) bool { return !strings.HasSuffix(q.URL.Path, "/vm") && !isCRD(q) }
	// A running watch resumes without a list. Only a new agent lists.
	r.renew()
	r.proxy.breaksFor(onlyLists, r.proxy.emptyLists)
	r.start()
	r.eventually(r.vmis.synced, "no list")
	r.misses("vm")
	r.wantFate("vm", v, grace.FateHere) // the server itself knows it
	r.proxy.recover()
	r.proxy.cut()
	r.renew()
	r.start()
	r.sees("vm", v)
	if p := r.pod("vm", any1); p.UID != uid {
		t.Errorf("%+v", p)
	}
}

// direct returns a rig without a proxy: the kernel and the server end its
// connections.
func direct(t *testing.T, api *cluster.API) *rig {
	t.Helper()
	r := newRigAt(t, api)
	r.proxy.kubeconfig = api.As(t, r.name).Kubeconfig
	r.renew()
	return r
}

func TestTheAPIServerMayComeLater(t *testing.T) {
	t.Parallel()
	api := cluster.NewAPI(t)
	if err := prepare(api); err != nil {
		t.Fatal(err)
	}
	r := direct(t, api)
	v := r.makeVMI("vm", "", `{}`)
	api.Kill()
	r.start()
	r.eventually(func() bool { return strings.Contains(r.logged(), string(unreachable)) }, "nothing is said")
	if v := r.VMI(r.name, "vm"); r.Up() || v.State != grace.VMIUnknown {
		t.Error("nothing can be known yet")
	}
	r.wantFate("vm", v, grace.FateUnknown)
	if err := api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r.eventually(func() bool { return r.Up() && r.vmis.synced() }, "the server's start is not noticed")
	t.Logf("the server's start was noticed %v after it was ready", time.Since(begin))
	r.sees("vm", v)
	if n := strings.Count(r.logged(), "\n"); n != 2 {
		t.Errorf("%d lines, want one down and one up:\n%s", n, r.logged())
	}

	// A restart of the server, as in an upgrade.
	begin = time.Now()
	api.Stop()
	t.Logf("the server took %v to stop", time.Since(begin))
	r.eventually(func() bool { return !r.Up() }, "the server's end is not noticed")
	r.sees("vm", v)
	if err := api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	r.eventually(r.Up, "the server's return is not noticed")
	t.Logf("its return was noticed %v after it was ready", time.Since(begin))
	if n := strings.Count(r.logged(), "level=WARN"); n != 2 {
		t.Errorf("%d lines, want one for each outage:\n%s", n, r.logged())
	}
}

func TestAServerThatTakesRequestsAndNeverAnswersIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := r.makeVMI("vm", "", `{}`)
	r.watching()
	r.sees("vm", v)
	r.proxy.breaks(hang)
	begin := time.Now()
	r.eventually(func() bool { return !r.Up() }, "such a server counts as up")
	t.Logf("it was noticed after %v", time.Since(begin))
	r.eventually(func() bool { return strings.Contains(r.logged(), string(unreachable)) }, "nothing is said")
	t.Logf("and said after %v", time.Since(begin))
	r.sees("vm", v)
	r.proxy.recover()
	r.eventually(r.Up, "the return is not noticed")
	r.sees("late", r.makeVMI("late", "", `{}`))
}

func TestWatchesThatEndAtOnceCostNoChange(t *testing.T) {
	r := newRig(t).watching()
	r.proxy.breaksFor(func(q *http.Request) bool { return q.URL.Query().Get("watch") != "" }, says(200, "application/json", ""))
	r.proxy.cut()
	v := r.makeVMI("vm", "", `{}`)
	r.sees("vm", v)
	r.must("DELETE", r.vmiPath("vm"), "")
	r.misses("vm")
	r.wantFate("vm", v, grace.FateDeleted)
}

func TestAFrozenAPIServerIsNoticed(t *testing.T) {
	t.Parallel()
	api := cluster.NewAPI(t)
	if err := prepare(api); err != nil {
		t.Fatal(err)
	}
	r := direct(t, api).watching()
	v := r.makeVMI("vm", "", `{}`)
	r.sees("vm", v)
	if err := api.Freeze(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r.eventually(func() bool { return !r.Up() }, "a frozen server counts as up")
	t.Logf("a frozen server was noticed after %v", time.Since(begin))
	r.sees("vm", v)
	r.wantFate("vm", v, grace.FateUnknown)
	if err := api.Thaw(); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	r.eventually(r.Up, "the thaw is not noticed")
	if n := strings.Count(r.logged(), "\n"); n != 3 {
		t.Errorf("%d lines, want up, down, up:\n%s", n, r.logged())
	}
	t.Logf("its thaw was noticed after %v", time.Since(begin))
	late := r.makeVMI("late", "", `{}`)
	r.sees("late", late)
}
