#ifndef VMGRACE_DEADLINE_H
#define VMGRACE_DEADLINE_H

#include <stdint.h>

struct thread;

// armed is one SIGTERM. Only the functions below use what is in it.
struct armed;

// What came of it, and for whom.
struct result {
	uintptr_t handle;
	int sent; // 0: disarmed, or not due at the end
	int err;  // errno of the attempt; ESRCH if the process had ended
	int64_t at;
};

// deadline_start returns 0 or errno, and in refused the errno with which the
// kernel refused real-time priority, or 0. report is an eventfd of the caller's
// that is rung when there are results.
int deadline_start(struct thread **t, int report, int *refused);

// deadline_end ends the thread. All that is left becomes results.
void deadline_end(struct thread *t);

// deadline_free comes after deadline_end and after the last result.
void deadline_free(struct thread *t);

// deadline_arm takes over the pidfd.
struct armed *deadline_arm(struct thread *t, int pidfd, int64_t at, uintptr_t handle);
void deadline_move(struct thread *t, struct armed *a, int64_t to);

// deadline_disarm returns 0 where the signal is sent or being sent.
int deadline_disarm(struct thread *t, struct armed *a);

// deadline_take returns the next result and frees what it is of, or 0.
int deadline_take(struct thread *t, struct result *r);

#endif
