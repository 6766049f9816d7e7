//go:build !unit

package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/vmgrace/vmgrace/internal/node/agent"
)

// events returns the Events in the rig's namespace, in order of arrival.
func (r *rig) events() []corev1.Event {
	r.Helper()
	var l corev1.EventList
	if err := json.Unmarshal(r.must("GET", "/api/v1/namespaces/"+r.name+"/events", "").body, &l); err != nil {
		r.Fatal(err)
	}
	slices.SortFunc(l.Items, func(a, b corev1.Event) int { // in etcd's order
		return strings.Compare(fmt.Sprintf("%20s", a.ResourceVersion), fmt.Sprintf("%20s", b.ResourceVersion))
	})
	return l.Items
}

func (r *rig) reasons() string {
	r.Helper()
	var all []string
	for _, e := range r.events() {
		all = append(all, e.Reason)
	}
	return strings.Join(all, " ")
}

func (r *rig) event(reason string) agent.Event {
	return agent.Event{Namespace: r.name, Name: "vm", UID: "uid-1", Reason: reason, Message: "m", Key: "k", At: time.Now()}
}

func TestAnEventIsOnTheVMI(t *testing.T) {
	r := newRig(t)
	v := r.makeVMI("vm", "", `{}`)
	r.watching()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.Report(agent.Event{Namespace: r.name, Name: "vm", UID: v.UID, Reason: "ShutdownForced", Message: "destroyed", Warning: true, Key: "k", At: at})
	r.eventually(func() bool { return r.reasons() == "ShutdownForced" }, "no Event")
	e := r.events()[0]
	if string(e.InvolvedObject.UID) != v.UID || e.InvolvedObject.Kind != "VirtualMachineInstance" ||
		e.InvolvedObject.APIVersion != "kubevirt.io/v1" || e.InvolvedObject.Name != "vm" || e.Type != "Warning" || e.Message != "destroyed" ||
		e.Source.Component != "node-agent" || e.Source.Host != r.name || e.ReportingController != "node-agent" ||
		e.Count != 1 || !e.FirstTimestamp.Time.Equal(at) || !e.LastTimestamp.Time.Equal(at) {
		t.Errorf("%+v", e)
	}
	if out := r.api.Kubectl(t, "describe", "vmi", "-n", r.name, "vm"); !strings.Contains(out, "ShutdownForced") || !strings.Contains(out, "node-agent") {
		t.Errorf("kubectl describe does not show it:\n%s", out)
	}
}

func TestAnEventOfTheNodeIsOnTheNode(t *testing.T) {
	r := newRig(t)
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+r.name+`"}}`)
	r.watching()
	r.Report(agent.Event{OfNode: true, Reason: "ShutdownDelayTooShort", Message: "too short", Warning: true, Key: "k", At: time.Now()})
	r.eventually(func() bool {
		return strings.Contains(r.api.Kubectl(t, "describe", "node", r.name), "ShutdownDelayTooShort")
	}, "kubectl describe does not show it")
}

func TestAnEventIsToldOnceAlsoAfterARestart(t *testing.T) {
	r := newRig(t).watching()
	first := r.event("ShutdownStarted")
	for range 20 {
		r.Report(first)
	}
	again := first
	again.Message, again.At = "another", first.At.Add(time.Hour)
	r.Report(again)
	r.eventually(func() bool { return r.reasons() == "ShutdownStarted" }, "no Event")

	r.renew()
	r.start()
	r.Report(again)
	other := first
	other.Key = "another shutdown"
	r.Report(other)
	mark := r.event("ShutdownCompleted")
	r.Report(mark)
	r.eventually(func() bool { return r.reasons() == strings.Repeat("ShutdownStarted ", 2)+"ShutdownCompleted" }, "want one of each kind for each key")
	if e := r.events()[0]; e.Message != "m" || e.Count != 1 {
		t.Errorf("the second replaced the first: %+v", e)
	}
	if strings.Contains(r.logged(), "level=WARN") {
		t.Errorf("a repetition is nothing to warn of:\n%s", r.logged())
	}
}

func TestEventsOfAnOutageComeAfterItInTheirOrder(t *testing.T) {
	rigs := map[string]*rig{}
	for name, fault := range map[string]http.HandlerFunc{
		"nobody": hangUp, "404 text": textPage(404), "404 JSON": bareStatus(404, "NotFound"), "401": bareStatus(401, "Unauthorized"),
		"no right": bareStatus(403, "Forbidden"), "422 text": textPage(422), "500": bareStatus(500, "InternalError"), "429": bareStatus(429, "TooManyRequests"),
		"a page": says(200, "text/html", "<html>please log in</html>"),
	} {
		r := newRig(t)
		rigs[name] = r
		r.proxy.breaks(fault)
		r.start()
		begin := time.Now()
		for i := range 4 {
			r.Report(r.event(fmt.Sprintf("Reason%d", i)))
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("%s: Report took %v", name, d)
		}
	}
	for name, r := range rigs {
		r.eventually(func() bool { return r.proxy.asked("POST") >= 3 }, "%s: nobody tries again", name)
		r.proxy.recover()
	}
	for name, r := range rigs {
		r.eventually(func() bool { return r.reasons() == "Reason0 Reason1 Reason2 Reason3" }, "%s: want all, late and in order", name)
		if n := strings.Count(r.logged(), "Events wait"); n != 1 {
			t.Errorf("%s: %d lines:\n%s", name, n, r.logged())
		}
	}
}

func TestAnEventThatIsRefusedForeverHoldsUpNoOther(t *testing.T) {
	r := newRig(t)
	r.must("POST", "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":"%s-ends"},"spec":{"finalizers":["kubernetes"]}}`, r.name))
	r.must("DELETE", "/api/v1/namespaces/"+r.name+"-ends", "")
	r.start()
	bad := func(change func(*agent.Event)) {
		e := r.event("Bad")
		change(&e)
		r.Report(e)
	}
	bad(func(e *agent.Event) { e.Namespace, e.Key = "no-such-namespace", "1" })
	bad(func(e *agent.Event) { e.Namespace, e.Key = r.name+"-ends", "2" })
	r.Report(r.event("Good"))
	begin := time.Now()
	r.eventually(func() bool { return r.reasons() == "Good" }, "it is held up")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("held up for %v", d)
	}
	if n := strings.Count(r.logged(), "refuses an Event"); n != 2 {
		t.Errorf("%d lines about 2 Events that are dropped:\n%s", n, r.logged())
	}
}

func TestAnEventThatAlwaysFailsHoldsUpNoOther(t *testing.T) {
	r := newRig(t)
	r.proxy.breaksFor(func(q *http.Request) bool { return strings.Contains(q.URL.Path, "poison") }, bareStatus(500, "InternalError"))
	r.start()
	poison := r.event("Poison")
	poison.Namespace, poison.UID = "poison", "uid-2"
	r.Report(poison)
	for i := range 10 {
		r.Report(r.event(fmt.Sprintf("Good%d", i)))
	}
	r.eventually(func() bool { return len(r.events()) == 10 }, "they are held up")
}

func TestTheQueueOfEventsIsBounded(t *testing.T) {
	var log strings.Builder
	o := newOutbox(slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 3 * maxQueue {
		o.add(agent.Event{Name: "vm", UID: fmt.Sprint(i), Message: strings.Repeat("ä", 5000)})
	}
	if len(o.queue) != maxQueue {
		t.Errorf("%d Events wait", len(o.queue))
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines", n)
	}
	if e := o.queue[0]; e.UID != fmt.Sprint(2*maxQueue) || len(e.Message) > maxMessage {
		t.Errorf("the first one is %s with %d bytes", e.UID, len(e.Message))
	}
}

func TestEveryEventHasANameThatKubernetesTakes(t *testing.T) {
	long := strings.Repeat("a.b-", 63)
	for _, e := range []agent.Event{{Name: "vm"}, {Name: long}, {Name: strings.Repeat("a", 199) + "." + strings.Repeat("b", 50)}} {
		if name := eventName(e); len(name) > 253 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Errorf("%q", name)
		}
	}
	a, b := agent.Event{Name: "vm", UID: "u", Reason: "ab", Key: "c"}, agent.Event{Name: "vm", UID: "u", Reason: "a", Key: "bc"}
	if eventName(a) == eventName(b) {
		t.Error("two Events with one name")
	}
}

func TestTheServersWordOnAnEventIsBelievedOnlyIfItIsTheServers(t *testing.T) {
	o := agent.Event{Namespace: "ns", Name: "vm", Reason: "r"}
	status := func(code int, reason, details string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"details":%s}`, reason, code, details)
		return w
	}
	for name, c := range map[string]struct {
		got  *httptest.ResponseRecorder
		want verdict
	}{
		"exists":              {status(409, "AlreadyExists", `{}`), delivered},
		"conflict":            {status(409, "Conflict", `{}`), retry},
		"no namespace":        {status(404, "NotFound", `{"kind":"namespaces","name":"ns"}`), refused},
		"no other namespace":  {status(404, "NotFound", `{"kind":"namespaces","name":"other"}`), retry},
		"no resource":         {status(404, "NotFound", `{}`), retry},
		"invalid":             {status(422, "Invalid", `{}`), refused},
		"by admission":        {status(403, "Forbidden", `{"kind":"events","name":"`+eventName(o)+`"}`), refused},
		"by rights":           {status(403, "Forbidden", `{"kind":"events"}`), retry},
		"not what it says":    {status(500, "Invalid", `{}`), refused},
		"a webhook's failure": {status(500, "InternalError", `{}`), retry},
	} {
		if v, _ := (answer{c.got.Code, c.got.Body.Bytes()}).verdict(o); v != c.want {
			t.Errorf("%s: %d, want %d", name, v, c.want)
		}
	}
	for _, page := range []string{"", "<html>", "{}"} {
		for _, code := range []int{200, 302, 400, 403, 404, 409, 413, 422, 500} {
			if v, err := (answer{code, []byte(page)}).verdict(o); v != retry || err == nil {
				t.Errorf("status %d with %q: %d, %v", code, page, v, err)
			}
		}
	}
}
