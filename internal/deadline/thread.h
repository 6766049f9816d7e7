#ifndef VMGRACE_DEADLINE_H
#define VMGRACE_DEADLINE_H

#include <stdint.h>

struct thread;

// armed is one SIGTERM. Only the functions below use what is in it.
struct armed;

// journal is shared with the agents before and after this one. Its one writer is
// the thread; after entries[count % JOURNAL_ENTRIES] comes the first one again.
#define JOURNAL_ENTRIES 1023
struct journal {
	uint64_t count;
	uint64_t reserved;
	struct {
		uint64_t pid, start;
	} entries[JOURNAL_ENTRIES];
};

// What came of it, and for whom.
struct result {
	uintptr_t handle;
	int sent; // 0: disarmed, or not due at the end
	int err;  // errno of the attempt; ESRCH if the process had ended
	int64_t at;
};

// deadline_start returns 0 or errno, and in refused the errno with which the
// kernel refused real-time priority, or 0. report is an eventfd of the caller's
// that is rung when there are results. The journal may be NULL.
int deadline_start(struct thread **t, int report, struct journal *journal, int *refused);

// deadline_end ends the thread. All that is left becomes results.
void deadline_end(struct thread *t);

// deadline_free comes after deadline_end and after the last result.
void deadline_free(struct thread *t);

// deadline_arm takes over the pidfd. Pid and start time are for the journal.
struct armed *deadline_arm(struct thread *t, int pidfd, uint64_t pid, uint64_t start, int64_t at, uintptr_t handle);
void deadline_move(struct thread *t, struct armed *a, int64_t to);

// deadline_disarm returns 0 where the signal is sent or being sent.
int deadline_disarm(struct thread *t, struct armed *a);

// deadline_take returns the next result and frees what it is of, or 0.
int deadline_take(struct thread *t, struct result *r);

#endif
