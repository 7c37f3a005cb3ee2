// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// podUser is the user of the processes of pods.
const podUser = 65532

// network has the network namespaces of pods. The datacenters have subnets of
// their own, and reach each other through load balancers only.
type network struct {
	testing.TB
	prefix string // of the names of namespaces
	pods   int
}

// newNetwork returns a network with a router. It skips the test without root.
func newNetwork(t testing.TB) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, p := range []string{"ip", "nft", "unshare", "chroot", "curl"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs the program %s", p)
		}
	}
	n := &network{TB: t, prefix: fmt.Sprintf("wfchart%d", os.Getpid())}
	n.add(n.prefix)
	for _, args := range []string{
		"link set lo up", "link add br0 type bridge", "link set br0 up",
		"address add 10.9.1.1/24 dev br0", "address add 10.9.2.1/24 dev br0",
	} {
		n.in(n.prefix, "ip", strings.Fields(args)...)
	}
	n.in(n.prefix, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	// Between subnets, only connections to a load balancer are forwarded. The rules
	// may also apply to the frames of the bridge.
	n.in(n.prefix, "nft", `table ip lb {
		chain before { type nat hook prerouting priority -100; }
		chain after { type nat hook postrouting priority 100; ct status dnat masquerade; }
		chain forward { type filter hook forward priority 0; policy drop; ct status dnat accept;
			ip saddr 10.9.1.0/24 ip daddr 10.9.1.0/24 accept; ip saddr 10.9.2.0/24 ip daddr 10.9.2.0/24 accept; }
	}`)
	return n
}

// add adds a namespace until the end of the test.
func (n *network) add(name string) {
	n.Helper()
	command(n, "ip", "netns", "add", name)
	n.Cleanup(func() { command(n, "ip", "netns", "delete", name) })
}

// in runs a command in a namespace.
func (n *network) in(namespace, name string, args ...string) string {
	n.Helper()
	return command(n, "ip", append([]string{"netns", "exec", namespace, name}, args...)...)
}

// balance makes an address a load balancer of the WAN listeners of pods.
func (n *network) balance(address string, pods ...*pod) {
	n.Helper()
	var to []string
	for i, p := range pods {
		to = append(to, fmt.Sprintf("%d : %s", i, p.ip))
	}
	n.in(n.prefix, "nft", fmt.Sprintf("add rule ip lb before ip daddr %s tcp dport 8443 dnat to numgen inc mod %d map { %s }",
		address, len(pods), strings.Join(to, ", ")))
}

// pod is a pod of a StatefulSet, without Kubernetes.
type pod struct {
	*network
	name, namespace, ip string
	set                 *apps.StatefulSet
	root                string // root file system: the files of the image, and volumes
	running             []*exec.Cmd
	writable            []string // mounted directories that the processes may write
	env                 map[string]string
}

// datacenter is a rendered chart with its pods.
type datacenter struct {
	chart
	secrets map[string]map[string][]byte
	pods    []*pod
	subnet  int
	next    int // last byte of the address of the next pod
}

// create creates the pods of all StatefulSets, without starting them.
func (d *datacenter) create(n *network) {
	n.Helper()
	for _, set := range d.stateful {
		for i := range int(*set.Spec.Replicas) {
			n.pods++
			p := &pod{network: n, name: fmt.Sprintf("%s-%d", set.Name, i), set: set, root: n.TempDir(),
				namespace: fmt.Sprintf("%s-%d", n.prefix, n.pods)}
			d.pods = append(d.pods, p)
			n.add(p.namespace)
			link := fmt.Sprintf("p%d", n.pods)
			command(n, "ip", "-n", n.prefix, "link", "add", link, "master", "br0", "type", "veth",
				"peer", "name", "eth0", "netns", p.namespace)
			command(n, "ip", "-n", n.prefix, "link", "set", link, "up")
			command(n, "ip", "-n", p.namespace, "link", "set", "lo", "up")
			d.readdress(p)
		}
	}
}

// readdress gives a pod a new address, as a new pod has.
func (d *datacenter) readdress(p *pod) {
	p.Helper()
	d.next++
	command(p, "ip", "-n", p.namespace, "address", "flush", "dev", "eth0")
	p.ip = fmt.Sprintf("10.9.%d.%d", d.subnet, 10+d.next)
	command(p, "ip", "-n", p.namespace, "address", "add", p.ip+"/24", "dev", "eth0")
	command(p, "ip", "-n", p.namespace, "link", "set", "eth0", "up")
	command(p, "ip", "-n", p.namespace, "route", "replace", "default", "via", fmt.Sprintf("10.9.%d.1", d.subnet))
}

// pod returns a pod by its name.
func (d *datacenter) pod(t testing.TB, name string) *pod {
	t.Helper()
	i := slices.IndexFunc(d.pods, func(p *pod) bool { return p.name == name })
	if i < 0 {
		t.Fatalf("no pod %s", name)
	}
	return d.pods[i]
}

// write writes a file of a pod with the owner that Kubernetes gives it.
func (p *pod) write(path string, data []byte, mode os.FileMode, group int) {
	p.Helper()
	to := filepath.Join(p.root, path)
	err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.RemoveAll(to), os.WriteFile(to, data, mode),
		os.Chown(to, 0, group))
	if err != nil {
		p.Fatal(err)
	}
}

// start prepares the file system of a pod, runs its init containers and starts
// its containers.
func (d *datacenter) start(p *pod) {
	p.Helper()
	program, err := os.ReadFile(tools(p).wanfed)
	if err != nil {
		p.Fatal(err)
	}
	p.write("/usr/bin/wanfed", program, 0o755, 0)
	var hosts strings.Builder
	for _, other := range d.pods {
		fmt.Fprintf(&hosts, "%s %s.%s.%s.svc\n", other.ip, other.name, other.set.Spec.ServiceName, namespace)
	}
	p.write("/etc/hosts", []byte("127.0.0.1 localhost\n"+hosts.String()), 0o644, 0)
	p.write("/proc/.keep", nil, 0o644, 0) // a mount point
	spec := p.set.Spec.Template.Spec
	p.writable = nil
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, m := range c.VolumeMounts {
			d.mount(p, spec, m)
		}
	}
	for _, c := range spec.InitContainers {
		cmd := d.process(p, c)
		if out, err := cmd.CombinedOutput(); err != nil {
			p.Fatalf("init container %s of %s: %v\n%s", c.Name, p.name, err, out)
		}
	}
	p.running = nil
	for _, c := range spec.Containers {
		log, err := os.OpenFile(filepath.Join(p.root, c.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			p.Fatal(err)
		}
		cmd := d.process(p, c)
		cmd.Stdout, cmd.Stderr = log, log
		if err := errors.Join(cmd.Start(), log.Close()); err != nil {
			p.Fatal(err)
		}
		p.running = append(p.running, cmd)
	}
	p.Cleanup(func() {
		p.stop()
		if p.Failed() {
			for _, c := range spec.Containers {
				log, _ := os.ReadFile(filepath.Join(p.root, c.Name+".log"))
				p.Logf("log of %s, %s:\n%s", p.name, c.Name, log[max(0, len(log)-3000):])
			}
		}
	})
}

// mount writes the files of a volume.
func (d *datacenter) mount(p *pod, spec core.PodSpec, m core.VolumeMount) {
	p.Helper()
	i := slices.IndexFunc(spec.Volumes, func(v core.Volume) bool { return v.Name == m.Name })
	switch {
	case i >= 0 && spec.Volumes[i].ConfigMap != nil:
		for name, text := range find(p, d.configs, spec.Volumes[i].ConfigMap.Name).Data {
			p.write(filepath.Join(m.MountPath, name), []byte(text), 0o644, podUser)
		}
	case i >= 0 && spec.Volumes[i].Projected != nil:
		for _, s := range spec.Volumes[i].Projected.Sources {
			for _, item := range s.Secret.Items {
				data, ok := d.secrets[s.Secret.Name][item.Key]
				if !ok {
					p.Fatalf("no Secret %s with %s", s.Secret.Name, item.Key)
				}
				mode := os.FileMode(*spec.Volumes[i].Projected.DefaultMode)
				p.write(filepath.Join(m.MountPath, item.Path), data, mode, podUser)
			}
		}
	case !slices.Contains(p.writable, m.MountPath): // a claim, which stays, or an emptyDir
		dir := filepath.Join(p.root, m.MountPath)
		if i >= 0 {
			if err := os.RemoveAll(dir); err != nil {
				p.Fatal(err)
			}
		}
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, 0, podUser), os.Chmod(dir, 0o770)); err != nil {
			p.Fatal(err)
		}
		p.writable = append(p.writable, m.MountPath)
	}
}

// script runs the program with a read-only root, as the user of the pod.
const script = `set -e
root=$1 writable=$2; shift 2
mount --bind "$root" "$root"
for dir in $writable; do mount --bind "$root$dir" "$root$dir"; done
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
cd /
exec chroot --userspec=65532:65532 "$root" /usr/bin/wanfed "$@"
`

// wanfed returns a process of the program in a pod.
func (p *pod) wanfed(args ...string) *exec.Cmd {
	cmd := exec.Command("ip", append([]string{"netns", "exec", p.namespace, "unshare", "--mount", "sh", "-c", script, "sh",
		p.root, strings.Join(p.writable, " ")}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range p.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// process returns the process of a container.
func (d *datacenter) process(p *pod, c core.Container) *exec.Cmd {
	p.Helper()
	p.env = map[string]string{}
	for _, e := range c.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			p.env[e.Name] = e.Value
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
			p.env[e.Name] = p.name
		case from.FieldRef != nil && from.FieldRef.FieldPath == "status.podIP":
			p.env[e.Name] = p.ip
		case from.SecretKeyRef != nil:
			data, ok := d.secrets[from.SecretKeyRef.Name][from.SecretKeyRef.Key]
			if ok {
				p.env[e.Name] = string(data)
			} else if !*from.SecretKeyRef.Optional {
				p.Fatalf("no Secret %s", from.SecretKeyRef.Name)
			}
		default:
			p.Fatalf("the tests do not know the source of %s", e.Name)
		}
	}
	return p.wanfed(d.args(p, c)...)
}

// args returns the arguments of a container with the variables replaced.
func (d *datacenter) args(p *pod, c core.Container) (all []string) {
	for _, arg := range c.Args {
		for name, value := range p.env {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		all = append(all, arg)
	}
	return all
}

// exec runs a command in a pod, as "kubectl exec" does.
func (p *pod) exec(args ...string) string {
	p.Helper()
	p.env = nil
	cmd := p.wanfed(args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.Fatalf("wanfed %s in %s: %v\n%s", strings.Join(args, " "), p.name, err, out)
	}
	return string(out)
}

// stop ends the processes of a pod, as Kubernetes does.
func (p *pod) stop() {
	for _, cmd := range p.running {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range p.running {
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			p.Errorf("%s: %v ends with %v, want status 0 after SIGTERM", p.name, cmd.Args[len(cmd.Args)-1], err)
		}
		kill.Stop()
	}
	p.running = nil
}

// wantAll waits until a server sees that both datacenters are ok.
func (p *pod) wantAll(when string) {
	p.Helper()
	var out string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		// A server that has no news of the other datacenter is ok at once.
		if out = p.exec("status", "--wait", "30s"); strings.HasPrefix(out, "all 2 datacenters are ok") {
			return
		}
	}
	p.Fatalf("%s: wanfed status in %s = %s, want that both datacenters are ok", when, p.name, out)
}

// ready waits until the readiness probe of each container succeeds, and verifies
// the certificate of the process by name.
func (p *pod) ready(ca, dc string) {
	p.Helper()
	for _, c := range p.set.Spec.Template.Spec.Containers {
		probe := c.ReadinessProbe.HTTPGet
		i := slices.IndexFunc(c.Ports, func(q core.ContainerPort) bool { return q.Name == probe.Port.StrVal })
		host := fmt.Sprintf("%s.%s.wanfed:%d", c.Name, dc, c.Ports[i].ContainerPort)
		p.in(p.prefix, "curl", "-sSf", "--cacert", ca, "--connect-to", host+":"+p.ip+":", "--retry", "60", "--retry-delay", "1",
			"--retry-all-errors", "--max-time", "5", "https://"+host+probe.Path)
	}
}
