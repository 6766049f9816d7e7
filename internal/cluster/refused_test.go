//go:build !unit

package cluster_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// requests returns the sum of the API server's metrics whose lines match a regular
// expression. Its last group is the number.
func (w world) requests(lines string) (n float64) {
	w.Helper()
	for _, found := range regexp.MustCompile(lines).FindAllStringSubmatch(api.Kubectl(w, "get", "--raw", "/metrics"), -1) {
		v, err := strconv.ParseFloat(found[len(found)-1], 64)
		w.must(err)
		n += v
	}
	return n
}

// refusedBudgets counts the budgets that the API server has refused to make.
func (w world) refusedBudgets() float64 {
	w.Helper()
	return w.requests(`(?m)^apiserver_request_total\{.*code="403".*resource="poddisruptionbudgets".*verb="POST".*\} (\d+)$`)
}

func TestAMigrationsVMCannotBeChanged(t *testing.T) {
	w := given(t)
	m := w.Migrate("m", "vm")
	for _, change := range []string{`{"spec":{"vmiName":"other"}}`, `{"spec":{"vmiName":null}}`, `{"spec":null}`} {
		if err := w.Patch(t.Context(), m.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(change))); err == nil || !strings.Contains(err.Error(), "cannot be changed") {
			t.Errorf("%s: %v", change, err)
		}
	}
	w.must(w.Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))))
}
