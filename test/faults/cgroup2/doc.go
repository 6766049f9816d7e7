// Package cgroup2 runs the tests of what reads cgroups, and both programs, in an emulated guest whose kernel has
// cgroups of version 2 only. The test cluster's machines have version 1.
//
// The tests are built here and packed behind the initramfs of the test guest (test/guest). An API server outside
// of the guest has the VMIs and launcher pods. Package inside has the tests that run only in there.
package cgroup2
