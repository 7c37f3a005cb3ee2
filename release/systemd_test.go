// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// enclose runs a command in a control group of its own, and ends it after 100
// seconds. $1 is an empty directory.
const enclose = `set -e
mount --make-rprivate /
mount -t cgroup2 cgroup2 "$1"
own="$1/wanfed-test-$$" root="$1"; shift
mkdir "$own"
echo 0 >"$own/cgroup.procs"
code=0
timeout --kill-after=5 100 "$@" || code=$?
echo 0 >"$root/cgroup.procs"
find "$own" -depth -type d -exec rmdir {} +
exit $code
`

// boot starts systemd as process 1 of new namespaces. The root is a writable
// layer over that of this machine, without its enabled units. $1 is an empty
// directory, and $2 the directory that the processes see as /srv.
const boot = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for d in null zero full random urandom tty; do cp -a /dev/$d dev; done
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount --bind "$2" srv
rm -rf etc/wanfed var/lib/wanfed etc/systemd/system/*.wants/*
printf '[Unit]\nRequires=wanfed-test.service\n' >etc/systemd/system/wanfed-test.target
cat >etc/systemd/system/wanfed-test.service <<end
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sh -ex /srv/script >/srv/output 2>&1; systemctl exit \$\$?'
end
mkdir old
pivot_root . old # not chroot: units with a namespace of their own change the root, too
exec chroot . /bin/sh -ec 'umount -l /old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	/lib/systemd/systemd --system --unit=wanfed-test.target --log-target=console'
`

// script runs in the booted system. The gateway has a port below 1024.
const systemdScript = `
ip link set lo up
ip address add 10.0.0.5/32 dev lo
dpkg -i /srv/wanfed.deb
systemd-analyze verify --man=no /usr/lib/systemd/system/wanfed-server.service /usr/lib/systemd/system/wanfed-gateway.service
wanfed init --dc dc1 --wan 10.0.0.5:443
pid() { systemctl show -P MainPID "$1"; }
user() { stat -c %U "/proc/$(pid "$1")"; }
systemctl is-active wanfed-server wanfed-gateway
systemctl is-enabled wanfed-server wanfed-gateway
test "$(user wanfed-server) $(user wanfed-gateway)" = "wanfed wanfed"

systemctl reload wanfed-server wanfed-gateway
systemctl is-active wanfed-server wanfed-gateway

kill -KILL "$(pid wanfed-server)"
until test "$(systemctl show -P NRestarts wanfed-server)" = 1 && systemctl is-active wanfed-server; do sleep 0.2; done
systemctl restart wanfed-gateway
wanfed status --wait 30s

systemd-analyze security --no-pager wanfed-server wanfed-gateway | grep Overall
dpkg -i /srv/wanfed.deb
systemctl is-active wanfed-server wanfed-gateway
dpkg -r wanfed
test "$(systemctl is-active wanfed-server wanfed-gateway | sort -u)" = inactive
echo the units are stopped
`

// TestDeb_Systemd installs the package in a system with systemd, and runs the
// units.
func TestDeb_Systemd(t *testing.T) {
	need(t, "dpkg", "unshare", "ip", "systemctl", "systemd-analyze", "/lib/systemd/systemd")
	deb := one(t, ".deb")
	share := t.TempDir()
	data, err := os.ReadFile(deb)
	err = errors.Join(err, os.Chmod(share, 0o755), os.WriteFile(filepath.Join(share, "wanfed.deb"), data, 0o644),
		os.WriteFile(filepath.Join(share, "script"), []byte(systemdScript), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	console, err := exec.Command("unshare", "--mount", "sh", "-c", enclose, "sh", t.TempDir(),
		"unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "--kill-child",
		"sh", "-c", boot, "sh", t.TempDir(), share).CombinedOutput()
	out, readErr := os.ReadFile(filepath.Join(share, "output"))
	if errors.Is(readErr, os.ErrNotExist) {
		t.Skipf("systemd does not run in namespaces here: %v\n%s", err, console)
	}
	t.Logf("in the system:\n%s", out)
	if err != nil || !strings.HasSuffix(string(out), "\nthe units are stopped\n") {
		t.Errorf("the script ends with %v, want status 0; the console:\n%s", err, console)
	}
}
