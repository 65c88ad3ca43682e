package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// cluster is everything in kubernetes/, by the API's own types.
type cluster struct {
	namespaces []*corev1.Namespace
	services   []*corev1.Service
	budgets    []*policyv1.PodDisruptionBudget
	workloads  []workload
}

// workload is what makes pods: a StatefulSet, Deployment or Job.
type workload struct {
	file     string
	name     string
	replicas int32
	selector map[string]string
	pod      *corev1.PodTemplateSpec
	set      *appsv1.StatefulSet // nil for others
}

func (w workload) String() string { return w.file + ": " + w.name }

// manifests decodes every document that kustomization.yaml lists, and refuses
// unknown and doubled fields as an API server with strict validation does.
func manifests(t *testing.T) cluster {
	t.Helper()
	text, err := os.ReadFile("kubernetes/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct {
		metav1.TypeMeta `json:",inline"`
		Namespace       string              `json:"namespace"`
		Resources       []string            `json:"resources"`
		Images          []map[string]string `json:"images"`
	}
	if err := yaml.UnmarshalStrict(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	var c cluster
	for _, name := range kustomization.Resources {
		text, err := os.ReadFile(filepath.Join("kubernetes", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range documents(t, text) {
			if err := c.add("kubernetes/"+name, kustomization.Namespace, doc); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return c
}

func (c *cluster) add(file, namespace string, doc []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	var object metav1.Object
	var err error
	decode := func(into metav1.Object) {
		object = into
		err = yaml.UnmarshalStrict(doc, into)
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Namespace":
		n := new(corev1.Namespace)
		decode(n)
		c.namespaces = append(c.namespaces, n)
		if n.Name != namespace {
			return fmt.Errorf("namespace %q, the kustomization's is %q", n.Name, namespace)
		}
		return err
	case "v1 Service":
		s := new(corev1.Service)
		decode(s)
		c.services = append(c.services, s)
	case "policy/v1 PodDisruptionBudget":
		b := new(policyv1.PodDisruptionBudget)
		decode(b)
		c.budgets = append(c.budgets, b)
	case "apps/v1 StatefulSet":
		s := new(appsv1.StatefulSet)
		decode(s)
		c.workloads = append(c.workloads, workload{file, s.Name, *s.Spec.Replicas, s.Spec.Selector.MatchLabels, &s.Spec.Template, s})
	case "apps/v1 Deployment":
		d := new(appsv1.Deployment)
		decode(d)
		c.workloads = append(c.workloads, workload{file, d.Name, *d.Spec.Replicas, d.Spec.Selector.MatchLabels, &d.Spec.Template, nil})
	case "batch/v1 Job":
		j := new(batchv1.Job)
		decode(j)
		c.workloads = append(c.workloads, workload{file, j.Name, 1, nil, &j.Spec.Template, nil})
	default:
		return fmt.Errorf("no check for %s %s", kind.APIVersion, kind.Kind)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, object.GetName(), err)
	}
	if object.GetNamespace() != namespace {
		return fmt.Errorf("%s %s is in namespace %q, want %q", kind.Kind, object.GetName(), object.GetNamespace(), namespace)
	}
	return nil
}

func documents(t *testing.T, text []byte) (out [][]byte) {
	t.Helper()
	r := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer r.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := r.Read(buf)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, bytes.Clone(buf[:n]))
	}
}

// hosts returns the names that the cluster resolves, with the ports that are open there.
func (c cluster) hosts() map[string][]string {
	out := make(map[string][]string)
	for _, s := range c.services {
		var open []string
		for _, p := range s.Spec.Ports {
			open = append(open, strconv.Itoa(int(p.Port)))
		}
		domain := s.Name + "." + s.Namespace + ".svc.cluster.local"
		out[domain] = open
		for _, w := range c.workloads {
			if w.set == nil || w.set.Spec.ServiceName != s.Name {
				continue
			}
			for i := range w.replicas {
				out[fmt.Sprintf("%s-%d.%s", w.name, i, domain)] = open
			}
		}
	}
	return out
}

var reference = regexp.MustCompile(`\$\([A-Za-z_][A-Za-z0-9_]*\)`)

// value returns what a variable is in the first pod.
func (w workload) value(t *testing.T, e corev1.EnvVar) string {
	t.Helper()
	switch {
	case e.ValueFrom == nil:
		return e.Value
	case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.name":
		if w.set != nil {
			return w.name + "-0"
		}
		return w.name + "-5d9c7b6f4-x2x4z"
	}
	t.Errorf("%s: no check for where %s comes from", w, e.Name)
	return ""
}

func kubernetesInvocations(t *testing.T) (out []invocation) {
	t.Helper()
	c := manifests(t)
	for _, w := range c.workloads {
		for _, container := range w.pod.Spec.Containers {
			inv := invocation{
				file: w.file, name: w.name, env: make(map[string]string), addrs: c.hosts(), open: []string{},
			}
			for _, e := range container.Env {
				inv.env[e.Name] = w.value(t, e)
			}
			for _, arg := range container.Args {
				inv.argv = append(inv.argv, reference.ReplaceAllStringFunc(arg, func(ref string) string {
					value, ok := inv.env[ref[2:len(ref)-1]]
					if !ok { // Kubernetes leaves it as it stands
						t.Errorf("%s: %s in %q is no variable of the container", w, ref, arg)
					}
					return value
				}))
			}
			for _, p := range container.Ports {
				inv.open = append(inv.open, strconv.Itoa(int(p.ContainerPort)))
			}
			slices.Sort(inv.open)
			out = append(out, inv)
		}
	}
	return out
}

func TestKubernetesSelectorsFindTheirPods(t *testing.T) {
	c := manifests(t)
	pods := func(selector map[string]string) (out []workload) {
		for _, w := range c.workloads {
			if len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(w.pod.Labels)) {
				out = append(out, w)
			}
		}
		return out
	}
	for _, w := range c.workloads {
		if w.selector != nil && len(pods(w.selector)) != 1 {
			t.Errorf("%s: selects the pods of %v", w, pods(w.selector))
		}
		if w.set != nil && !slices.ContainsFunc(c.services, func(s *corev1.Service) bool {
			return s.Name == w.set.Spec.ServiceName && s.Spec.ClusterIP == corev1.ClusterIPNone
		}) {
			t.Errorf("%s: its headless service %q is missing, so its pods have no names", w, w.set.Spec.ServiceName)
		}
		for _, spread := range w.pod.Spec.TopologySpreadConstraints {
			if len(pods(spread.LabelSelector.MatchLabels)) != 1 {
				t.Errorf("%s: spreads over the pods of %v", w, pods(spread.LabelSelector.MatchLabels))
			}
		}
	}
	for _, b := range c.budgets {
		if len(pods(b.Spec.Selector.MatchLabels)) != 1 {
			t.Errorf("budget %s: selects the pods of %v", b.Name, pods(b.Spec.Selector.MatchLabels))
		}
	}
	for _, s := range c.services {
		found := pods(s.Spec.Selector)
		if len(found) != 1 {
			t.Errorf("service %s: selects the pods of %v", s.Name, found)
			continue
		}
		for _, p := range s.Spec.Ports {
			container := found[0].pod.Spec.Containers[0]
			i := slices.IndexFunc(container.Ports, func(cp corev1.ContainerPort) bool { return cp.Name == p.TargetPort.StrVal })
			if i < 0 || container.Ports[i].ContainerPort != p.Port {
				t.Errorf("service %s: port %s %d is not one of %v", s.Name, p.Name, p.Port, container.Ports)
			}
		}
	}
}

func TestKubernetesProbesAskForPathsThatTheProgramsServe(t *testing.T) {
	probed := 0
	for _, w := range manifests(t).workloads {
		for _, container := range w.pod.Spec.Containers {
			open := make(map[string]bool)
			for _, p := range container.Ports {
				open[p.Name] = true
			}
			probes := map[string]*corev1.Probe{
				"/readyz": container.ReadinessProbe, "/healthz": container.LivenessProbe, "/healthz (startup)": container.StartupProbe,
			}
			for want, probe := range probes {
				if probe == nil {
					continue
				}
				probed++
				want, _, _ := strings.Cut(want, " ")
				if get := probe.HTTPGet; get == nil || get.Path != want || !open[get.Port.StrVal] {
					t.Errorf("%s: probe %+v, want %s at an open port", w, probe.HTTPGet, want)
				}
			}
			if open["http"] && (container.ReadinessProbe == nil || container.LivenessProbe == nil) {
				t.Errorf("%s: serves HTTP but has no readiness or liveness probe", w)
			}
			if a := w.pod.Annotations; open["http"] && (a["prometheus.io/path"] != "/metrics" || a["prometheus.io/port"] != ports()[container.Args[0]].http) {
				t.Errorf("%s: annotations %v do not lead to its metrics", w, a)
			}
		}
	}
	if probed < 6 {
		t.Errorf("only %d probes", probed)
	}
}

func TestKubernetesPodsKeepTheStrictestSecurityLevel(t *testing.T) {
	c := manifests(t)
	if level := c.namespaces[0].Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
		t.Errorf("the namespace enforces %q", level)
	}
	for _, w := range c.workloads {
		pod := w.pod.Spec.SecurityContext
		if pod == nil || !*pod.RunAsNonRoot || *pod.RunAsUser != 65532 || pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: pod may run as root or without seccomp", w)
		}
		for _, container := range w.pod.Spec.Containers {
			s := container.SecurityContext
			if s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: container may gain privileges or write its root", w)
			}
			if container.Resources.Requests.Cpu().IsZero() || container.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: asks for no CPU or has no memory limit", w)
			}
		}
	}
}

func TestKubernetesBrokersKeepTheirDataInClaims(t *testing.T) {
	for _, w := range manifests(t).workloads {
		container := w.pod.Spec.Containers[0]
		if container.Args[0] != "broker" {
			continue
		}
		if w.set == nil {
			t.Fatalf("%s: brokers need stable names and claims: a StatefulSet", w)
		}
		dir := invocation{argv: container.Args}.settings()["data-dir"]
		i := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir })
		if i < 0 {
			t.Fatalf("%s: nothing is mounted at %q", w, dir)
		}
		mount := container.VolumeMounts[i].Name
		claim := slices.IndexFunc(w.set.Spec.VolumeClaimTemplates, func(p corev1.PersistentVolumeClaim) bool { return p.Name == mount })
		if claim < 0 {
			t.Fatalf("%s: no claim %q", w, mount)
		}
		if size := w.set.Spec.VolumeClaimTemplates[claim].Spec.Resources.Requests.Storage(); size.IsZero() {
			t.Errorf("%s: claim %q asks for no storage", w, mount)
		}
		if w.pod.Spec.SecurityContext.FSGroup == nil {
			t.Errorf("%s: without fsGroup the volume is root's", w)
		}
	}
}

func TestKubernetesVariablesInArgumentsAreSet(t *testing.T) {
	for _, w := range manifests(t).workloads {
		for _, container := range w.pod.Spec.Containers {
			set := make(map[string]bool)
			for _, e := range container.Env {
				set[e.Name] = true
			}
			for _, arg := range container.Args {
				_, rest, found := strings.Cut(arg, "$(")
				for found {
					var name string
					name, rest, _ = strings.Cut(rest, ")")
					if !set[name] {
						t.Errorf("%s: $(%s) in %s is not set; known are %v", w, name, arg, slices.Sorted(maps.Keys(set)))
					}
					_, rest, found = strings.Cut(rest, "$(")
				}
			}
		}
	}
}
