//go:build !unit

package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vmgrace/vmgrace/pkg/grace"
)

// lies returns answers of which none proves anything about a VMI.
func (r *rig) lies() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"404 text":            textPage(404),
		"404 HTML":            says(404, "text/html", "<html>404 not found</html>"),
		"404 empty":           says(404, "", ""),
		"404 JSON":            says(404, "application/json", `{"error":"not found"}`),
		"404 bare Status":     bareStatus(404, "NotFound"),
		"404 other object":    says(404, "application/json", notFound("other", "kubevirt.io", vmis().plural, 404)),
		"404 other group":     says(404, "application/json", notFound("vm", "example.com", vmis().plural, 404)),
		"404 other kind":      says(404, "application/json", notFound("vm", "kubevirt.io", "virtualmachines", 404)),
		"404 wrapped":         says(404, "application/json", `{"status":`+notFound("vm", "kubevirt.io", vmis().plural, 404)+`}`),
		"200 with a Status":   says(200, "application/json", notFound("vm", "kubevirt.io", vmis().plural, 404)),
		"200 empty object":    says(200, "application/json", `{}`),
		"200 other kind":      says(200, "application/json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"vm","uid":"x","creationTimestamp":"2020-01-01T00:00:00Z"}}`),
		"200 other namespace": says(200, "application/json", `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"vm","namespace":"other","uid":"x","creationTimestamp":"2020-01-01T00:00:00Z"}}`),
		"200 no UID":          says(200, "application/json", `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"vm","namespace":"`+r.name+`"}}`),
		"200 text":            says(200, "text/html", "<html>please log in</html>"),
		"302":                 says(302, "text/html", ""),
		"401":                 bareStatus(401, "Unauthorized"),
		"403":                 bareStatus(403, "Forbidden"),
		"403 text":            textPage(403),
		"410":                 bareStatus(410, "Gone"),
		"429":                 bareStatus(429, "TooManyRequests"),
		"500":                 bareStatus(500, "InternalError"),
		"503 text":            textPage(503),
		"500 as NotFound":     says(500, "application/json", notFound("vm", "kubevirt.io", vmis().plural, 404)),
		"cut":                 hangUp,
	}
}

func notFound(name, group, resource string, code int) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"not found","reason":"NotFound",
		"details":{"name":%q,"group":%q,"kind":%q},"code":%d}`, name, group, resource, code)
}

func isCRD(q *http.Request) bool { return strings.HasPrefix(q.URL.Path, "/apis/apiextensions.k8s.io/") }

func TestOnlyTheAPIServersOwnWordMakesAVMIDeleted(t *testing.T) {
	r := newRig(t).watching()
	here, gone := r.makeVMI("vm", "", `{}`), r.makeVMI("gone", "", `{}`)
	r.must("DELETE", r.vmiPath("gone"), "")
	r.wantFate("gone", gone, grace.FateDeleted)
	r.wantFate("vm", here, grace.FateHere)

	for name, lie := range r.lies() {
		r.proxy.breaksFor(nil, lie)
		for vmiName, v := range map[string]grace.VMI{"vm": here, "gone": gone} {
			if f, err := r.fate(vmiName, v); f != grace.FateUnknown || err == nil {
				t.Errorf("%s for everything: the fate of %s is %q, %v", name, vmiName, f, err)
			}
		}
		// The VMI is gone, but nobody can say whether its CRD is.
		r.proxy.breaksFor(isCRD, lie)
		if f, err := r.fate("gone", gone); f != grace.FateUnknown || err == nil {
			t.Errorf("%s for the CRD: %q, %v", name, f, err)
		}
		if f, err := r.fate("vm", here); f != grace.FateHere {
			t.Errorf("%s for the CRD: a VMI that is there needs no CRD: %q, %v", name, f, err)
		}
	}
	r.proxy.recover()
	r.wantFate("gone", gone, grace.FateDeleted)
	r.wantFate("vm", here, grace.FateHere)
}

func TestNoWordAboutAVMIThatWasNeverSeen(t *testing.T) {
	r := newRig(t)
	here := r.makeVMI("vm", "", `{}`)
	for name, v := range map[string]grace.VMI{
		"no creation time": {UID: here.UID},
		"no UID":           {Created: here.Created},
	} {
		if f, err := r.fate("vm", v); f != grace.FateUnknown || err == nil {
			t.Errorf("%s: %q, %v", name, f, err)
		}
	}
	for _, name := range []string{"../secrets/x", "", ".", "a/b", "A"} {
		if f, err := r.Confirm(t.Context(), r.name, name, here.UID, here.Created); f != grace.FateUnknown || err == nil {
			t.Errorf("name %q: %q, %v", name, f, err)
		}
	}
	if n := r.proxy.asked(""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestAConfirmationThatHangsEndsWithItsContextOrByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v := r.makeVMI("vm", "", `{}`)
	r.proxy.breaksFor(nil, hang)
	begin := time.Now()
	r.wantFate("vm", v, grace.FateUnknown)
	if d := time.Since(begin); d > confirmTimeout+5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// restoreCRD makes the CRD again, if it is gone, in another second than before.
func (r *rig) restoreCRD() {
	r.Helper()
	r.eventually(func() bool { return r.do("GET", crdPath, "").code == http.StatusNotFound || !r.crdEnds() }, "the CRD's end does not come")
	if _, err := r.api.TryKubectl(context.Background(), "", "apply", "-f", crdFile); err != nil {
		r.Fatal(err)
	}
	r.eventually(func() bool {
		return r.do("GET", strings.TrimSuffix(r.vmiPath(""), "/"), "").code == http.StatusOK
	}, "the CRD is not served")
}

func (r *rig) crdEnds() bool {
	return strings.Contains(string(r.do("GET", crdPath, "").body), `"deletionTimestamp"`)
}
