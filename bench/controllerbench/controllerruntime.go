// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// runControllerRuntime has config maps as items and secrets as classes, in a
// source in memory that takes the place of the API server.
func runControllerRuntime(ctx context.Context, n int, p *probe) error {
	log.SetLogger(logr.Discard())
	items, classes := fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource()
	object := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID("01JZ0000000000000000000000"), Generation: 1,
		}
	}
	for i := range n / fanout {
		classes.Add(&corev1.Secret{ObjectMeta: object(fmt.Sprintf("class-%d", i))})
	}
	for i := range n {
		items.Add(&corev1.ConfigMap{
			ObjectMeta: object(fmt.Sprintf("item-%d", i)),
			Data:       map[string]string{"class": classOf(i, n), "value": payload},
		})
	}

	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return err
	}
	shared := true
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			m := meta.NewDefaultRESTMapper(nil)
			for _, kind := range []string{"ConfigMap", "Secret"} {
				m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
			}
			return m, nil
		},
		Cache: cache.Options{
			DefaultUnsafeDisableDeepCopy: &shared,
			NewInformer: func(_ toolscache.ListerWatcher, obj runtime.Object, resync time.Duration,
				indexers toolscache.Indexers) toolscache.SharedIndexInformer {
				source := items
				if _, ok := obj.(*corev1.Secret); ok {
					source = classes
				}
				return toolscache.NewSharedIndexInformer(source, obj, resync, indexers)
			},
		},
	})
	if err != nil {
		return err
	}
	const field = "class"
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.ConfigMap{}, field, func(o client.Object) []string {
		return []string{o.(*corev1.ConfigMap).Data["class"]}
	}); err != nil {
		return err
	}
	c := mgr.GetClient()
	lookup := func(ctx context.Context, class string) (*corev1.ConfigMapList, error) {
		found := &corev1.ConfigMapList{}
		return found, c.List(ctx, found, client.MatchingFields{field: class})
	}
	err = builder.ControllerManagedBy(mgr).Named("bench").For(&corev1.ConfigMap{}).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(
			func(ctx context.Context, o client.Object) []reconcile.Request {
				found, err := lookup(ctx, o.GetName())
				if err != nil {
					return nil
				}
				reqs := make([]reconcile.Request, len(found.Items))
				for i := range found.Items {
					reqs[i].NamespacedName = client.ObjectKeyFromObject(&found.Items[i])
				}
				return reqs
			})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			p.reconciled()
			var item corev1.ConfigMap
			if err := c.Get(ctx, req.NamespacedName, &item); err != nil {
				return reconcile.Result{}, err
			}
			var class corev1.Secret
			return reconcile.Result{}, c.Get(ctx, types.NamespacedName{Namespace: "default", Name: item.Data["class"]}, &class)
		}))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	err = p.measure(ctx,
		// start
		func() { go func() { done <- mgr.Start(ctx) }() },
		// change
		func(i int) error {
			meta := object(classOf(i, n))
			meta.Annotations = map[string]string{"change": fmt.Sprint(i)}
			classes.Modify(&corev1.Secret{ObjectMeta: meta})
			return nil
		},
		// lookup
		func() (int, error) {
			found, err := lookup(ctx, "class-0")
			return len(found.Items), err
		},
		// scan
		func() (int, error) {
			all := &corev1.ConfigMapList{}
			err := c.List(ctx, all)
			found := 0
			for i := range all.Items {
				if all.Items[i].Data["class"] == "class-0" {
					found++
				}
			}
			return found, err
		})
	cancel()
	if err != nil {
		return err
	}
	return <-done
}
