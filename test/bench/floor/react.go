package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// recordSize is about the size of a record of vmgrace in bytes.
const recordSize = 900

// react waits for a file named shutdown in one of the directories below launchers, and
// reads it. It makes a record durable in state and asks libvirt for a shutdown of the
// domain that the directory is named after. The files uid and uuid beside it have the UID
// that the trigger must name and the domain's UUID.
func react(socket, launchers, state string) error {
	conn, err := open(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	entries, err := os.ReadDir(launchers)
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	names := map[int32]string{}
	for _, e := range entries {
		wd, err := unix.InotifyAddWatch(fd, filepath.Join(launchers, e.Name()), unix.IN_MOVED_TO)
		if err != nil {
			return fmt.Errorf("watch %s: %w", e.Name(), err)
		}
		names[int32(wd)] = e.Name()
	}
	fmt.Fprintln(os.Stdout, "ready")
	record, events := make([]byte, recordSize), make([]byte, 4096)
	for {
		n, err := unix.Read(fd, events)
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		for rest := events[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			wd, size := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[12:])
			file := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:][:size], "\x00"))
			rest = rest[unix.SizeofInotifyEvent+size:]
			if file != "shutdown" {
				continue
			}
			name := names[wd]
			if err := check(filepath.Join(launchers, name)); err != nil {
				return err
			}
			if err := durable(state, name+".json", record); err != nil {
				return err
			}
			uuid, err := os.ReadFile(filepath.Join(launchers, name, "uuid"))
			if err != nil {
				return err
			}
			if err := ask(conn, name, string(uuid)); err != nil {
				return err
			}
		}
	}
}

// check reads the trigger in a directory. The trigger must name the UID in the file uid.
func check(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "shutdown"))
	if err != nil {
		return err
	}
	var trigger struct{ UID string }
	if err := json.Unmarshal(text, &trigger); err != nil {
		return fmt.Errorf("trigger: %w", err)
	}
	uid, err := os.ReadFile(filepath.Join(dir, "uid"))
	if err == nil && string(uid) != trigger.UID {
		err = fmt.Errorf("the trigger names %q, not %q", trigger.UID, uid)
	}
	return err
}

// These are the parts of libvirt's RPC (remote_protocol.x) that are used. A message has a
// length, program, version, procedure, type, serial and status, and then the arguments in
// XDR.
const (
	program      = 0x20008086
	procOpen     = 1
	procShutdown = 258 // the call with flags, of which 1 is the power button
	powerButton  = 1
)

func message(proc uint32, args ...[]byte) []byte {
	body := bytes.Join(args, nil)
	m := words(uint32(28+len(body)), program, 1, proc, 0, 1, 0)
	return append(m, body...)
}

func words(w ...uint32) []byte {
	var b []byte
	for _, v := range w {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func text(s string) []byte {
	padded := append([]byte(s), make([]byte, (4-len(s)%4)%4)...)
	return append(words(uint32(len(s))), padded...)
}

// open connects to libvirt and makes it open the QEMU driver.
func open(socket string) (net.Conn, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(message(procOpen, words(1), text("qemu:///system"), words(0))); err != nil {
		return nil, err
	}
	return conn, answer(conn)
}

// answer reads a reply. Its status says whether the call has succeeded.
func answer(conn net.Conn) error {
	reply := make([]byte, 4096)
	n, err := conn.Read(reply)
	if err != nil {
		return err
	}
	if n < 28 || binary.BigEndian.Uint32(reply[24:]) != 0 {
		return fmt.Errorf("libvirt refuses: %q", reply[:n])
	}
	return nil
}

// ask presses a domain's power button.
func ask(conn net.Conn, name, uuid string) error {
	var raw []byte
	if _, err := fmt.Sscanf(strings.ReplaceAll(uuid, "-", ""), "%x", &raw); err != nil {
		return fmt.Errorf("uuid of %s: %w", name, err)
	}
	if _, err := conn.Write(message(procShutdown, text(name), raw, words(^uint32(0)), words(powerButton))); err != nil {
		return err
	}
	return answer(conn)
}
